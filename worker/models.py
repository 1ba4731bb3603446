"""Models: from the name in a job to an engine with its tokenizer, and what earlier engines like it have answered."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import cast

from db import model_files
from db.settings import Settings
from engine import EngineConfig, LoadedModel, load
from engine.dtypes import weight_dtype
from engine.loading import files_of
from worker.results import Results


def load_model(name: str, settings: Settings) -> LoadedModel:
    """Raises ModelMissing (db.errors) and EngineError."""
    if settings.engine_factory:
        module, _, function = settings.engine_factory.partition(":")
        return cast(LoadedModel, getattr(importlib.import_module(module), function)(name, settings))
    return load(model_files.find(name, settings), engine_config(settings))


def engine_config(settings: Settings) -> EngineConfig:
    """Raises InvalidRequest for settings that do not fit together."""
    return EngineConfig(
        device=settings.engine_device,
        tensor_parallel=settings.engine_tensor_parallel,
        dtype=settings.engine_dtype,
        kv_dtype=settings.engine_kv_dtype,
        attention=settings.engine_attention,
        deterministic=settings.engine_deterministic,
        speculation=settings.engine_speculation,
        block_size=settings.engine_block_size,
        cache_bytes=settings.engine_cache_bytes,
        memory_fraction=settings.engine_memory_fraction,
        max_model_len=settings.engine_max_model_len,
        max_sequences=settings.engine_max_sequences,
        token_budget=settings.engine_token_budget,
        prefix_caching=settings.engine_prefix_caching,
        num_threads=settings.engine_threads,
    )


def numerics(settings: Settings) -> str:
    """What decides an answer beside the model and the request."""
    device, dtype = settings.engine_device, settings.engine_dtype
    weights = weight_dtype("auto", device) if dtype == "auto" else dtype
    kinds = (settings.engine_tensor_parallel, weights, settings.engine_kv_dtype)
    how = (settings.engine_attention, settings.engine_deterministic)
    return " ".join(map(str, (version("nightmill"), device, *kinds, *how)))


def salt(name: str, settings: Settings) -> str:
    """What an earlier answer must have in common with a new one beside the model's fingerprint and the request.

    A fingerprint reads samples of a file: what was changed in place between them, size and time of its files tell. They
    are for the answers kept on this disk alone: a copy elsewhere is the same model, whenever it was made. Ask before
    the model is loaded, so that no file is taken for newer than what was read of it. Raises ModelMissing.
    """
    files = [] if settings.engine_factory else files_of(model_files.find(name, settings))
    states = [(file.name, (found := file.stat()).st_size, found.st_mtime_ns) for file in files]
    return f"{numerics(settings)} {states}"


def earlier_results(settings: Settings) -> Results:
    if settings.engine_factory:  # answers of an engine that is not ours
        return Results(None)
    path = settings.results if settings.results_bytes else None
    return Results(path, max_bytes=settings.results_bytes, keep_days=settings.results_days)
