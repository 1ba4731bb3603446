"""The recipes, one file each behind one small interface (worker.recipes.recipe)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from db import specs
from engine.tokenizer import Tokenizer
from worker.recipes.chat import ChatRecipe
from worker.recipes.extract import ExtractRecipe
from worker.recipes.generate import GenerateRecipe
from worker.recipes.label import LabelRecipe
from worker.recipes.multi_label import MultiLabelRecipe
from worker.recipes.openai import OpenAIRecipe
from worker.recipes.recipe import Answer, AnswerRefused, Message, Recipe, Row, RowRefused, Score
from worker.recipes.summarize import SummarizeRecipe

__all__ = ["Answer", "AnswerRefused", "Message", "Recipe", "Row", "RowRefused", "Score", "build"]


def build(
    spec: specs.Recipe, tokenizer: Tokenizer, *, max_chars: int, prepared: Mapping[str, object] | None = None
) -> Recipe:
    """The recipe of a job for a model. `prepared` is what `Recipe.prepare` once gave, `max_chars` the longest prompt
    text. Raises InvalidJob for what only the tokenizer shows to be wrong."""
    match spec:
        case specs.Summarize():
            return SummarizeRecipe(spec)
        case specs.Label(multi_label=many):
            return (MultiLabelRecipe if many else LabelRecipe)(spec, tokenizer, prepared or {})
        case specs.Generate():
            return GenerateRecipe(spec, max_chars)
        case specs.Chat():
            return ChatRecipe(spec)
        case specs.Extract():
            return ExtractRecipe(spec)
        case specs.OpenAI():
            return OpenAIRecipe(spec)
        case _:
            assert_never(spec)
