"""Request bodies of files, uploads and batches. What is not here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from api.openai.errors import APIError
from db.openai_body import ENDPOINTS
from db.settings import Settings

UNSUPPORTED = (
    "/v1/responses", "/v1/embeddings", "/v1/moderations", "/v1/images/generations", "/v1/images/edits", "/v1/videos",
)  # fmt: skip
UNITS = {"m": 60, "h": 3600, "d": 86_400}
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512
WORDS = {dict: "an object", list: "an array", bool: "a boolean", int: "an integer", float: "a number"}
ExpirySeconds = Annotated[int, Field(ge=3600, le=2_592_000)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExpiresAfter(_Request):
    anchor: Literal["created_at"] = Field(description="From when on `seconds` count.")
    seconds: ExpirySeconds = Field(description="Life of the file.")


class BatchRequest(_Request):
    input_file_id: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="A file of purpose `batch`.")
    endpoint: str = Field(description="`/v1/chat/completions` or `/v1/completions`, that of every line.")
    completion_window: str = Field(description="`24h`, or another of NIGHTMILL_OPENAI_COMPLETION_WINDOWS.")
    metadata: dict[str, str] | None = Field(default=None, description="Up to 16 pairs of text, kept with the batch.")
    output_expires_after: ExpiresAfter | None = Field(default=None, description="Life of output and error file.")

    @field_validator("metadata", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if isinstance(value, dict):
            check_metadata(value)
        return value


class UploadRequest(_Request):
    bytes: Annotated[int, Field(ge=1, lt=2**63)]
    filename: Annotated[str, Field(min_length=1, max_length=1024)]
    mime_type: Annotated[str, Field(min_length=1, max_length=255)]
    purpose: str
    expires_after: ExpiresAfter | None = None


class CompleteRequest(_Request):
    part_ids: Annotated[list[str], Field(min_length=1, max_length=100_000)] = Field(
        description="The parts in their order."
    )
    md5: str | None = Field(default=None, description="Of the whole file; checked if given.")


def check_metadata(pairs: dict[str, Any]) -> None:
    """Raises APIError in OpenAI's words."""
    if len(pairs) > MAX_PAIRS:
        raise APIError(f"'metadata' has more than {MAX_PAIRS} pairs.", param="metadata", code="invalid_value")
    for key, value in pairs.items():
        param = f"metadata.{key}"
        if not isinstance(value, str):
            got = "null" if value is None else WORDS[type(value)]
            reason = f"Invalid type for '{param}': expected a string, but got {got} instead."
            raise APIError(reason, param=param, code="invalid_type")
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            reason = f"'{param}': a key has at most {MAX_KEY} characters, a value {MAX_VALUE}."
            raise APIError(reason, param=param, code="string_above_max_length")


def check_endpoint(endpoint: str) -> None:
    if endpoint in ENDPOINTS:
        return
    reason = "is not supported by this server" if endpoint in UNSUPPORTED else "is no endpoint of batches"
    supported = "' and '".join(ENDPOINTS)
    message = f"Invalid value: '{endpoint}' {reason}. Supported values are: '{supported}'."
    raise APIError(message, param="endpoint", code="invalid_value")


def check_purpose(purpose: str) -> None:
    if purpose != "batch":
        raise APIError(
            f"Invalid value: '{purpose}'. The purpose 'batch' is supported, no other.",
            param="purpose",
            code="invalid_value",
        )


def window_seconds(window: str, settings: Settings) -> float:
    """Raises APIError for a completion window that this server does not offer."""
    if window not in settings.openai_completion_windows:
        offered = "', '".join(settings.openai_completion_windows)
        message = f"Invalid value: '{window}'. Supported values are: '{offered}'."
        raise APIError(message, param="completion_window", code="invalid_value")
    return int(window[:-1]) * UNITS[window[-1]]
