"""What a tokenizer's tokens are as bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import UnsupportedModel

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: tokenizers.Tokenizer, path: Path) -> list[bytes]:
    """The bytes of every id, so that those of a text's ids join to the text. Special tokens have none, as in decode.

    SentencePiece vocabularies put a space before a text's first word, which decode takes away and this does not.
    Raises UnsupportedModel for a decoder that is neither of bytes nor SentencePiece's.
    """
    steps = _steps(json.loads(tokenizer.decoder.__getstate__())) if tokenizer.decoder else []
    kinds = [step["type"] for step in steps]
    spelling = _printable_bytes() if "ByteLevel" in kinds else None
    spaces = _spaces(steps)
    if spelling is None and not spaces:
        raise UnsupportedModel(path, f"tokenizer decoder {', '.join(kinds) or 'none'}")
    added = tokenizer.get_added_tokens_decoder()
    found = [b""] * tokenizer.get_vocab_size(with_added_tokens=True)
    for token, i_token in tokenizer.get_vocab(with_added_tokens=True).items():
        if i_token >= len(found):  # ids with holes between them
            found.extend([b""] * (i_token + 1 - len(found)))
        if i_token in added:
            found[i_token] = b"" if added[i_token].special else token.encode()
        elif spelling is not None:
            found[i_token] = b"".join(spelling.get(character) or character.encode() for character in token)
        elif byte := BYTE_TOKEN.fullmatch(token) if "ByteFallback" in kinds else None:
            found[i_token] = bytes.fromhex(byte.group(1))
        else:
            found[i_token] = token.replace(spaces, " ").encode()
    return found


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """The decoder and, of a sequence, its members."""
    if decoder["type"] == "Sequence":
        return [step for member in decoder["decoders"] for step in _steps(member)]
    return [decoder]


def _spaces(steps: list[dict[str, Any]]) -> str:
    """The character that stands for a space, or nothing."""
    for step in steps:
        if step["type"] == "Metaspace":
            return str(step["replacement"])
        if step["type"] == "Replace" and step["content"] == " ":
            return str(step["pattern"].get("String", ""))
    return ""


def _printable_bytes() -> dict[str, bytes]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the other bytes for U+0100 and following."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spelling = {chr(byte): bytes([byte]) for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    return spelling | {chr(0x100 + i_byte): bytes([byte]) for i_byte, byte in enumerate(others)}
