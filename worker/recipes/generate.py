"""generate: a template over the row's columns -> free text."""

from __future__ import annotations

from jinja2 import TemplateError

from db.specs import Generate
from db.templates import renderer
from worker.recipes.free_text import FreeText
from worker.recipes.recipe import Message, Row, RowRefused


class GenerateRecipe(FreeText):
    default_max_tokens = 256

    def __init__(self, spec: Generate, max_chars: int) -> None:
        self._system = spec.system
        self._render = renderer(spec.template, max_chars)

    def text(self, row: Row) -> str:
        try:
            text = self._render(row)
        except TemplateError as error:
            raise RowRefused("template_error", str(error)) from error
        if not text.strip():
            raise RowRefused("empty_text", "the template gives an empty text")
        return text

    def messages(self, row: Row, text: str) -> list[Message]:
        user = {"role": "user", "content": text}
        return [user] if self._system is None else [{"role": "system", "content": self._system}, user]
