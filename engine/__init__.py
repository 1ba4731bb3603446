"""A throughput-first engine for language models: token ids in, token ids out."""

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    EngineError,
    InvalidRequest,
    ModelError,
    OutOfCache,
    RequestTooLong,
    UnsupportedFormat,
    UnsupportedModel,
)
from engine.format import Format, FormatKind
from engine.loading import LoadedModel, load
from engine.request import FinishReason, Output, Request, SamplingParams, TokenLogprobs
from engine.stats import EngineStats

__all__ = [
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "Format",
    "FormatKind",
    "InvalidRequest",
    "LoadedModel",
    "ModelError",
    "OutOfCache",
    "Output",
    "Request",
    "RequestTooLong",
    "SamplingParams",
    "TokenLogprobs",
    "UnsupportedFormat",
    "UnsupportedModel",
    "load",
]
