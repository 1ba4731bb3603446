"""load_tokenizer: from a path to a Tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from engine import end_tokens
from engine.errors import ModelError, UnsupportedModel
from engine.fields import Fields
from engine.gguf_file import GGUFFile
from engine.tokenizer import gguf_vocabulary
from engine.tokenizer.chat import ChatTemplate
from engine.tokenizer.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a Hugging Face folder or a GGUF file.

    Raises ModelError for files that are missing or damaged, UnsupportedModel for what is not supported, by name.
    """
    if path.is_dir():
        return _of_folder(path)
    return _of_gguf(GGUFFile.open(path))


def _of_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        slow = next((name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()), None)
        if slow is not None:
            raise UnsupportedModel(folder, f"tokenizer {slow}; only tokenizer.json is read")
        raise ModelError(file, "the file is missing")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(file, f"is not a sound tokenizer: {error}") from error
    config_file = folder / "tokenizer_config.json"
    fields = Fields.of_json(config_file) if config_file.is_file() else Fields(config_file, {})
    special = _special_tokens(fields.values)
    eos = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    template_file = folder / "chat_template.jinja"
    source = template_file.read_text(encoding="utf-8") if template_file.is_file() else _default_template(fields)
    return Tokenizer(
        tokenizer,
        folder,
        bos_token_id=tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else None,
        eos_token_ids=end_tokens.of_folder(folder) | ({eos} if eos is not None else set()),
        chat_template=ChatTemplate(source, special, folder) if source else None,
    )


def _special_tokens(values: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like: a text, or an object with the text as its `content`."""
    named = {name: value for name, value in values.items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _default_template(fields: Fields) -> str | None:
    """The template in tokenizer_config.json: a text, or a list of named ones of which one is the default."""
    for template in fields.items("chat_template"):
        if isinstance(template, str):
            return template
        if isinstance(template, dict) and template.get("name") == "default":
            return str(template.get("template"))
    return None


def _of_gguf(file: GGUFFile) -> Tokenizer:
    tokenizer = gguf_vocabulary.build(file)
    special = {}
    for name in ("bos", "eos", "unknown", "padding"):
        for i_token in file.fields.token_ids(f"tokenizer.ggml.{name}_token_id"):
            text = tokenizer.id_to_token(i_token)
            if text is None:
                raise ModelError(file.path, f"tokenizer.ggml.{name}_token_id={i_token} is outside the vocabulary")
            special[f"{ {'unknown': 'unk', 'padding': 'pad'}.get(name, name) }_token"] = text
    source = file.fields.text("tokenizer.chat_template", "")
    return Tokenizer(
        tokenizer,
        file.path,
        bos_token_id=tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else None,
        eos_token_ids=end_tokens.of_gguf(file),
        chat_template=ChatTemplate(source, special, file.path) if source else None,
    )
