"""Tokenizer: text to token ids and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import ChatTemplateError, InvalidRequest
from engine.tokenizer.chat import ChatTemplate
from engine.tokenizer.guard import Guard, free_mark
from engine.tokenizer.vocabulary import token_bytes


class Tokenizer:
    """Thread-safe: nothing changes after construction.

    Nothing is added to a text that is not asked for: where a model wants its beginning-of-sequence token, either the
    chat template writes it or the caller puts `bos_token_id` first.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        path: Path,
        *,
        bos_token_id: int | None,
        eos_token_ids: frozenset[int],
        chat_template: ChatTemplate | None,
    ) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._marked_up = tokenizer  # the text of control tokens becomes control tokens
        self._plain = _copy(tokenizer)  # … and stays text
        self._plain.encode_special_tokens = True
        self._continued = _continued(self._plain)
        added = tokenizer.get_added_tokens_decoder()
        self._control = {token.content: (i_token, token) for i_token, token in added.items() if token.special}
        self._guard = Guard(self._control)
        self._chat_template = chat_template
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.token_bytes = token_bytes(tokenizer, path)

    @property
    def vocab_size(self) -> int:
        """Number of ids. The model may have more, which stand for nothing."""
        return len(self.token_bytes)

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of a text. The text of a control token is text like any other."""
        return _ids(self._plain, [text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, on all cores."""
        return _ids(self._plain, texts)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, prefill: str = "") -> list[int]:
        """Ids of messages in the model's own chat format, up to the answer, of which `prefill` is the beginning.

        Control tokens come from the template alone; their text inside a message is text. Raises ChatTemplateError when
        the model has no template or its template refuses the messages.
        """
        if self._chat_template is None:
            raise ChatTemplateError("the model has no chat template")
        texts = [*(text for message in messages for text in message.values() if isinstance(text, str)), prefill]
        if not any(map(self._guard.threatened, texts)):
            return _ids(self._marked_up, [self._chat_template.render(messages) + prefill])[0]
        mark = free_mark(texts)
        marked = [
            {name: self._guard.mark(text, mark) if isinstance(text, str) else text for name, text in message.items()}
            for message in messages
        ]
        rendered = self._chat_template.render(marked) + self._guard.mark(prefill, mark)
        return self._encode_pieces(rendered, mark)

    def count(self, text: str) -> int:
        """Number of ids of a text."""
        return len(self.encode(text))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, without control tokens. Bytes that are not UTF-8 come out as U+FFFD."""
        text: str = self._plain.decode(list(ids), skip_special_tokens=True)
        return text

    def to_json(self) -> str:
        """The tokenizer in the `tokenizers` library's own format, for libraries that read it."""
        state: str = self._plain.to_str()
        return state

    def _encode_pieces(self, rendered: str, mark: str) -> list[int]:
        """Encode a rendered chat: control tokens where they still read as such, marks taken out of the rest."""
        pieces = self._guard.split(rendered)
        for i_piece in range(1, len(pieces), 2):
            token = self._control[pieces[i_piece]][1]
            if token.lstrip:
                pieces[i_piece - 1] = pieces[i_piece - 1].rstrip()
            if token.rstrip:
                pieces[i_piece + 1] = pieces[i_piece + 1].lstrip()
        ids: list[int] = []
        for i_piece, piece in enumerate(pieces):
            if i_piece % 2:
                ids.append(self._control[piece][0])
            elif piece:
                ids += _ids(self._continued if i_piece else self._plain, [piece.replace(mark, "")])[0]
        return ids


def _ids(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    try:
        # The fast variant leaves out offsets, which nobody reads.
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidRequest("text", texts[0][:80], f"is not valid Unicode text: {error}") from error


def _copy(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer.to_str())


def _continued(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer for text behind a control token: SentencePiece's space goes before the very first word only."""
    state = json.loads(tokenizer.pre_tokenizer.__getstate__()) if tokenizer.pre_tokenizer else {}
    if not _drop_first_space(state):
        return tokenizer
    whole = json.loads(tokenizer.to_str())
    whole["pre_tokenizer"] = state
    continued = tokenizers.Tokenizer.from_str(json.dumps(whole))
    continued.encode_special_tokens = True
    return continued


def _drop_first_space(state: dict[str, Any]) -> bool:
    """Turn the prepend_scheme `first` into `never`, in place; whether there was one."""
    if state.get("prepend_scheme") == "first":
        state["prepend_scheme"] = "never"
        return True
    dropped = [_drop_first_space(member) for member in state.get("pretokenizers", [])]
    return any(dropped)
