"""The job as specified and stored: the one contract between api, which validates it, and worker, which reads it back.

Frozen pydantic models; unknown fields are refused. A field is here only if some code reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(min_length=1, max_length=512)]
Text = Annotated[str, Field(max_length=100_000)]


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SamplingSpec(Spec):
    """Sampling as a client writes it; engine.SamplingParams gives the meaning. Defaults that are None are the recipe's."""

    temperature: float = Field(default=0.0, ge=0, le=100)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=100)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=100, description="Adds the column `logprobs` (JSON text).")

    @model_validator(mode="after")
    def _ordered(self) -> SamplingSpec:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}")
        return self


class Summarize(Spec):
    """One text column -> a summary."""

    kind: Literal["summarize"] = "summarize"
    column: Name = "text"
    max_words: int = Field(default=100, ge=5, le=2000)
    instruction: Text | None = Field(default=None, description="Replaces the recipe's own instruction.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class Example(Spec):
    """A labelled text shown to the model before the row's own."""

    text: Text
    label: Name


class Label(Spec):
    """One text column -> one label of a closed list, and the label's probability among the list."""

    kind: Literal["label"] = "label"
    column: Name = "text"
    labels: tuple[Name, ...] = Field(min_length=2, max_length=1000)
    descriptions: dict[str, Text] = Field(default_factory=dict, description="What a label means, by label.")
    examples: tuple[Example, ...] = Field(default=(), max_length=64)
    instruction: Text | None = Field(default=None, description="Replaces the recipe's own system text.")
    calibration: Literal["none", "contextual", "batch"] = Field(
        default="batch",
        description="Correction for the model's liking of a label whatever the text: `contextual` (Zhao et al. 2021) "
        "by content-free texts, `batch` (Zhou et al. 2023) by the mean over a sample of the job's rows.",
    )

    @model_validator(mode="after")
    def _known_labels(self) -> Label:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels are not distinct")
        named = [*self.descriptions, *(example.label for example in self.examples)]
        unknown = sorted(set(named) - set(self.labels))
        if unknown:
            raise ValueError(f"not among labels: {', '.join(unknown)}")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class Generate(Spec):
    """A sandboxed Jinja template over the row's columns -> free text."""

    kind: Literal["generate"] = "generate"
    template: Annotated[str, Field(min_length=1, max_length=100_000)]
    system: Text | None = None
    # Filled in at submission from the template's variables; a client need not send it.
    columns: tuple[Name, ...] = ()


class Chat(Spec):
    """A column of messages (list of structs with role and content, or JSON text of the same) -> the next message."""

    kind: Literal["chat"] = "chat"
    column: Name = "messages"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


Recipe = Annotated[Summarize | Label | Generate | Chat, Field(discriminator="kind")]


class JobSpec(Spec):
    """A job. `input` and `output` are URIs on the local disk (a path or file://…) under the configured roots."""

    input: Annotated[str, Field(min_length=1, max_length=4096)]
    output: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None, description="Folder for the result, empty or absent before; none: one made by the service."
    )
    recipe: Recipe
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    sampling: SamplingSpec = SamplingSpec()
    keep_columns: tuple[Name, ...] | None = Field(default=None, description="Input columns to carry over; none: all.")
    output_prefix: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_]*$")] = Field(
        default="",
        description="Put before the name of every added column, where an input column has that name already.",
    )
    on_long: Literal["error", "truncate_head", "truncate_tail", "truncate_middle"] = Field(
        default="error",
        description="What happens to a row too long for the model: an error row, or cut at the named place of its text.",
    )
    max_rows: int | None = Field(default=None, ge=1, description="Take only the first rows of the input.")
    shard_rows: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Rows of a shard; none: the setting's."
    )
