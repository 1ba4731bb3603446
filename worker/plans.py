"""What a job's specification means for a model: recipe, rows and columns, put together the same way by every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from db import columns
from db.errors import InvalidJob
from db.settings import Settings
from db.specs import JobSpec
from engine.tokenizer import Tokenizer
from worker.map_reduce import MapReduceRowMaker
from worker.openai_rows import OpenAIRowMaker
from worker.recipes import Recipe, build
from worker.recipes.openai import OpenAIRecipe
from worker.rows import RowMaker
from worker.shards import Layout


class Model(Protocol):
    """What decides how rows become requests."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_model_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Plan:
    recipe: Recipe
    maker: RowMaker
    layout: Layout


def plan(
    spec: JobSpec,
    model: Model,
    settings: Settings,
    source: pa.Schema,
    prepared: Mapping[str, object],
    job_id: str,
    tenant: str,
) -> Plan:
    """Raises InvalidJob, and EngineError for sampling parameters or a format that the engine refuses."""
    recipe = build(spec.recipe, model.tokenizer, max_chars=settings.max_prompt_bytes, prepared=prepared)
    limits = {"max_model_len": model.max_model_len, "max_prompt_bytes": settings.max_prompt_bytes}
    if isinstance(recipe, OpenAIRecipe):
        maker: RowMaker = OpenAIRowMaker(spec, recipe, model.tokenizer, **limits, group=job_id, owner=tenant)
    elif spec.on_long == "map_reduce":
        maker = MapReduceRowMaker(spec, recipe, model.tokenizer, **limits, group=job_id, owner=tenant)
    else:
        maker = RowMaker(spec, recipe, model.tokenizer, **limits, group=job_id, owner=tenant)
    if maker.max_prompt_tokens < 1:
        reason = f"leaves no room for a prompt: the model takes {model.max_model_len} tokens in all"
        raise InvalidJob("sampling.max_tokens", reason)
    if isinstance(maker, MapReduceRowMaker):
        maker.check()
    return Plan(recipe, maker, layout_of(spec, source))


def layout_of(spec: JobSpec, source: pa.Schema) -> Layout:
    """Raises InvalidJob."""
    return Layout(
        read=columns.read_columns(spec),
        kept=tuple(columns.kept_columns(spec, source)),
        schema=columns.output_schema(spec, source),
        prefix=spec.output_prefix,
    )
