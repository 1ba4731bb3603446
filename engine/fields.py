"""Fields: the key-value half of a model's files (config.json, GGUF metadata), read by type and refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class Fields:
    """Values by name, and the file they come from. An absent value and an explicit null are the same."""

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def of_json(cls, path: Path) -> Fields:
        """Read a JSON object. Raises ModelError when the file is missing or holds anything else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(path, "the file is missing") from None
        except (OSError, ValueError) as error:
            raise ModelError(path, f"cannot be read as JSON: {error}") from error
        if not isinstance(values, dict):
            raise ModelError(path, f"holds a JSON {type(values).__name__}, not an object")
        return cls(path, values)

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 1:
            raise ModelError(self.path, f"{name}={value!r} is not a positive whole number")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ModelError(self.path, f"{name}={value!r} is not a positive number")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise ModelError(self.path, f"{name}={value!r} is not text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ModelError(self.path, f"{name}={value!r} is neither true nor false")
        return value

    def items(self, name: str) -> list[Any]:
        """A list; a single value counts as a list of one, an absent one as an empty list."""
        value = self.values.get(name)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def token_ids(self, name: str) -> frozenset[int]:
        """One token id or several; absent: none."""
        ids = self.items(name)
        for value in ids:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelError(self.path, f"{name} holds {value!r}, which is no token id")
        return frozenset(ids)

    def nested(self, name: str) -> Fields:
        """The object under a name; absent: an empty one."""
        value = self.values.get(name) or {}
        if not isinstance(value, dict):
            raise ModelError(self.path, f"{name}={value!r} is not an object")
        return Fields(self.path, value)

    def _get(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(self.path, f"{name} is missing")
        return value
