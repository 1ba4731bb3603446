"""The token ids that end a text, as a model's files name them."""

from __future__ import annotations

from pathlib import Path

from engine.fields import Fields
from engine.gguf_file import GGUFFile


def of_folder(folder: Path) -> frozenset[int]:
    """generation_config.json's eos_token_id, or else config.json's; a file that is not there names none."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            ids = Fields.of_json(folder / name).token_ids("eos_token_id")
            if ids:
                return ids
    return frozenset()


def of_gguf(file: GGUFFile) -> frozenset[int]:
    """The end of a sequence and, where the file tells them apart, the end of a turn."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return frozenset[int]().union(*(file.fields.token_ids(key) for key in keys))
