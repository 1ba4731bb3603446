"""The bodies of /v1/chat/completions and /v1/completions: what of them is supported, and what is refused by name.

One contract for api, which checks every line of a batch with it, and worker, which reads the line back. A parameter
that is null counts as not given, as with OpenAI. A few have no effect on the output and are taken (HARMLESS); whatever
else is not listed here is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from db import json_schemas

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = (CHAT, COMPLETIONS)
# Of bookkeeping at OpenAI alone: what these say changes no token of an answer.
HARMLESS = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
MAX_ANSWERS = 128
MAX_STOPS = 64
MaxTokens = Annotated[int, Field(ge=1, lt=2**31)]
TINY = 1e-9  # top_p of 0 leaves the most probable token alone, and so does this


class BodyRefused(Exception):
    """A body that cannot be run. `param` is the path inside the body, `code` one of OpenAI's."""

    def __init__(self, message: str, param: str | None, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def _given(value: Any) -> Any:
    """An object without its null members."""
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TextPart(_Part):
    type: Literal["text"]
    text: str


class Message(_Part):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        """With the role names that chat templates know."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text}


class NamedSchema(_Part):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool = True

    @field_validator("json_schema")
    @classmethod
    def _sound(cls, schema: dict[str, Any]) -> dict[str, Any]:
        json_schemas.check(schema)
        return schema


class TextFormat(_Part):
    type: Literal["text"]


class ObjectFormat(_Part):
    type: Literal["json_object"]


class SchemaFormat(_Part):
    type: Literal["json_schema"]
    json_schema: Annotated[NamedSchema, BeforeValidator(_given)]


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Body(_Part):
    """What both endpoints take. Numbers may be written as integers."""

    model: Annotated[str, Field(min_length=1, max_length=4096)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] = 1
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)
    ] = []
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0

    @property
    def format(self) -> ObjectFormat | SchemaFormat | None:
        """What the answer is held to."""
        return None

    @property
    def sampling(self) -> dict[str, Any]:
        """As engine.SamplingParams names it, but for seed and max_tokens."""
        return {
            "temperature": self.temperature,
            "top_p": max(self.top_p, TINY),
            "stop": tuple(self.stop),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


class ChatBody(_Body):
    messages: Annotated[list[Annotated[Message, BeforeValidator(_given)]], Field(min_length=1)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Annotated[ResponseFormat, BeforeValidator(_given)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) == 2:
            raise BodyRefused("'max_tokens' and 'max_completion_tokens' differ.", "max_tokens", "invalid_value")
        if self.top_logprobs is not None and not self.logprobs:
            reason = "'top_logprobs' needs 'logprobs' to be true."
            raise BodyRefused(reason, "top_logprobs", "invalid_value")
        if self.format is not None and self.stop:
            reason = "'stop' cannot be combined with a JSON 'response_format', which says itself where an answer ends."
            raise BodyRefused(reason, "stop", "invalid_value")
        if not any(message.text.strip() for message in self.messages):
            raise BodyRefused("Every message is empty.", "messages", "invalid_value")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer; None: as many as the context has room for."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def format(self) -> ObjectFormat | SchemaFormat | None:
        return None if isinstance(self.response_format, TextFormat) else self.response_format


class CompletionBody(_Body):
    """`prompt` is one text, also as a list of one, or the tokens of one."""

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[int], Field(min_length=1)]
    max_tokens: MaxTokens = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], (str, list)):
            if len(value) > 1:
                raise BodyRefused("Several prompts in one request are not supported.", "prompt", "unsupported_value")
            return value[0]
        return value

    @property
    def limit(self) -> int:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


Body: TypeAlias = ChatBody | CompletionBody
KINDS: dict[str, type[ChatBody] | type[CompletionBody]] = {CHAT: ChatBody, COMPLETIONS: CompletionBody}


def parse(endpoint: str, body: object) -> Body:
    """The body of a request to one of ENDPOINTS. Raises BodyRefused."""
    if not isinstance(body, Mapping):
        raise BodyRefused("The body must be a JSON object.", None, "invalid_type")
    given = {name: value for name, value in body.items() if value is not None and name not in HARMLESS}
    _drop_idle(given)
    if endpoint == CHAT and "messages" not in given:
        raise BodyRefused("Messages parameter is required.", "messages", "invalid_request")
    if "model" not in given:
        raise BodyRefused("Model parameter is required.", "model", "invalid_request")
    try:
        return KINDS[endpoint].model_validate(given)
    except ValidationError as error:
        raise _refusal(error) from error


def _drop_idle(given: dict[str, Any]) -> None:
    """Take out what is known, not supported, and set to what changes nothing."""
    if given.get("stream") is True:
        raise BodyRefused("Streaming is not supported.", "stream", "streaming_unsupported")
    idle: dict[str, tuple[object, ...]] = {
        "stream": (False,),
        "logit_bias": ({},),
        "echo": (False,),
        "best_of": (given.get("n", 1),),
        "modalities": (["text"],),
    }
    for name, values in idle.items():
        if name in given and given[name] in values:
            del given[name]


def _refusal(error: ValidationError) -> BodyRefused:
    """The first thing that is wrong, in OpenAI's words."""
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return BodyRefused(f"'{param}' is not supported.", param, "unsupported_parameter")
        case "missing":
            return BodyRefused(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        case kind:
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
            return BodyRefused(f"Invalid value for '{param}': {first['msg']}.", param, code)


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[0].role`. What pydantic puts in between to tell the alternatives of a union apart is left out."""
    path = ""
    for place, part in enumerate(loc):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part != "str" and (place == 0 or loc[place - 1] != "response_format"):
            path += f".{part}" if path else part
    return path
