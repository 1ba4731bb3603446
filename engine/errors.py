"""What the engine raises. Every error carries the value that was wrong, so that a caller can name it."""

from __future__ import annotations

from collections.abc import Mapping


class EngineError(Exception):
    """Any error that the engine raises on purpose."""

    code = "engine_error"


class InvalidRequest(EngineError, ValueError):
    """A request or its sampling parameters cannot be what they say."""

    code = "invalid_request"

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}={value!r}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class RequestTooLong(EngineError):
    """The request could never be finished: it needs more positions or more cache than there will ever be."""

    code = "request_too_long"

    def __init__(self, num_tokens: int, limit: int, limit_name: str) -> None:
        super().__init__(f"{num_tokens} tokens (prompt and output) exceed {limit_name} of {limit}")
        self.num_tokens = num_tokens
        self.limit = limit
        self.limit_name = limit_name


class ModelError(EngineError):
    """A model's files cannot be used: missing, damaged, or of a kind that is not supported."""

    code = "model_error"

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason


class UnsupportedModel(ModelError):
    """The architecture, tensor type or option of a model is known to be unsupported, and is named."""

    code = "unsupported_model"


class OutOfCache(EngineError):
    """The configured memory does not hold even one block of key/value cache per sequence."""

    code = "out_of_cache"


class RankFailed(EngineError):
    """One of the processes that share a model has ended, or cannot go on. The engine must be built anew."""

    code = "rank_failed"

    def __init__(self, exit_codes: Mapping[int, int | None]) -> None:
        """By rank; None where the process is still there."""
        ended = ", ".join(f"rank {rank} ({_how(code)})" for rank, code in exit_codes.items())
        super().__init__(f"tensor parallelism has failed: {ended or 'a rank does not answer'}")
        self.exit_codes = dict(exit_codes)


def _how(code: int | None) -> str:
    if code is None:
        return "out of memory"
    return f"ended by signal {-code}" if code < 0 else f"ended with status {code}"


class ChatTemplateError(EngineError):
    """The model's chat template refuses the messages, or there is no template."""

    code = "template_error"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnsupportedFormat(EngineError, ValueError):
    """An output format cannot be enforced: it is faulty, nothing satisfies it, or it uses something unsupported."""

    code = "unsupported_format"

    def __init__(self, kind: str, keyword: str, reason: str) -> None:
        super().__init__(f"format {kind}, {keyword}: {reason}")
        self.kind = kind
        self.keyword = keyword  # the JSON Schema keyword, or the kind's own name where it is about the whole
        self.reason = reason
