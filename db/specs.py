"""The job as specified and stored: the one contract between api, which validates it, and worker, which reads it back.

Frozen pydantic models; unknown fields are refused. A field is here only if some code reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from db.formats import OutputFormat, SchemaOptions
from db.sampling import SamplingSpec
from db.spec_fields import Name, Spec, Text


class Summarize(Spec):
    """One text column -> a summary."""

    kind: Literal["summarize"] = "summarize"
    column: Name = Field(default="text", description="Input column with the text.")
    max_words: int = Field(default=100, ge=5, le=2000, description="Length of a summary.")
    instruction: Text | None = Field(default=None, description="Replaces the recipe's own instruction.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class Example(Spec):
    """A labelled text shown to the model before the row's own; for `multi_label` with any number of labels."""

    text: Text = Field(description="A text like those of the rows.")
    label: Name | tuple[Name, ...] = Field(description="What it has: one of `labels`, or with `multi_label` several.")

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label


class Label(Spec):
    """One text column -> one label of a closed list with its probability among the list, or all labels that apply."""

    kind: Literal["label"] = "label"
    column: Name = Field(default="text", description="Input column with the text.")
    labels: tuple[Name, ...] = Field(min_length=2, max_length=1000, description="All possible answers.")
    descriptions: dict[str, Text] = Field(default_factory=dict, description="What a label means, by label.")
    examples: tuple[Example, ...] = Field(default=(), max_length=64, description="Shown before the row's own text.")
    instruction: Text | None = Field(default=None, description="Replaces the recipe's own system text.")
    calibration: Literal["none", "contextual", "batch"] = Field(
        default="batch",
        description="Correction for the model's liking of a label whatever the text: `contextual` (Zhao et al. 2021) "
        "by content-free texts, `batch` (Zhou et al. 2023) by the mean over a sample of the job's rows.",
    )
    label_probs: bool = Field(
        default=False, description="Adds the column `label_probs`: every label with its probability."
    )
    multi_label: bool = Field(
        default=False, description="Any number of labels per row, in the column `labels`: each is asked for by itself."
    )
    threshold: float | None = Field(
        default=None, gt=0, lt=1, description="multi_label: probability from which on a label applies; none: 0.5."
    )
    abstain_below: float | None = Field(
        default=None, gt=0, le=1, description="A confidence below this gives no label and `abstained` = true."
    )

    @model_validator(mode="after")
    def _known_labels(self) -> Label:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels are not distinct")
        named = [*self.descriptions, *(label for example in self.examples for label in example.labels)]
        unknown = sorted(set(named) - set(self.labels))
        if unknown:
            raise ValueError(f"not among labels: {', '.join(unknown)}")
        return self

    @model_validator(mode="after")
    def _one_or_many(self) -> Label:
        if self.multi_label and self.abstain_below is not None:
            raise ValueError("abstain_below has no place beside multi_label, where a row may have no label at all")
        if not self.multi_label and self.threshold is not None:
            raise ValueError("threshold means nothing without multi_label")
        if not self.multi_label and any(len(example.labels) != 1 for example in self.examples):
            raise ValueError("without multi_label an example has one label")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class Generate(Spec):
    """A sandboxed Jinja template over the row's columns -> free text."""

    kind: Literal["generate"] = "generate"
    template: Annotated[str, Field(min_length=1, max_length=100_000)] = Field(
        description="Jinja template over the row's columns."
    )
    system: Text | None = Field(default=None, description="The system prompt.")
    format: OutputFormat | None = Field(default=None, description="What answers are held to; none: free text.")
    columns: tuple[Name, ...] = Field(default=(), description="Filled in at submission from the template's variables.")


class Chat(Spec):
    """A column of messages (list of structs with role and content, or JSON text of the same) -> the next message."""

    kind: Literal["chat"] = "chat"
    column: Name = Field(default="messages", description="Input column with the messages.")
    format: OutputFormat | None = Field(default=None, description="What answers are held to; none: free text.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class Extract(SchemaOptions):
    """One text column -> JSON of a schema, and one typed column per property of the job's schema."""

    kind: Literal["extract"] = "extract"
    column: Name = Field(default="text", description="Input column with the text.")
    instruction: Text | None = Field(default=None, description="Replaces the recipe's own words; the schema follows.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class OpenAI(Spec):
    """A column of OpenAI request bodies, as JSON text -> the choices that the API answers them with."""

    kind: Literal["openai"] = "openai"
    column: Name = Field(default="body", description="Input column with the request bodies.")
    endpoint: Literal["/v1/chat/completions", "/v1/completions"] = Field(
        default="/v1/chat/completions",
        description="What the bodies are for. Each brings its own sampling and format; its `model` is not read.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


OnLong = Literal["error", "truncate_head", "truncate_tail", "truncate_middle", "map_reduce"]
Recipe = Annotated[Summarize | Label | Generate | Chat | Extract | OpenAI, Field(discriminator="kind")]


class OnlyNew(Spec):
    """Rows that no earlier run of the same schedule had: by a column that identifies a row, or by the whole row."""

    key: Name | None = Field(default=None, description="Column that identifies a row; none: all columns together.")


class JobSpec(Spec):
    """A job. `input` and `output` are places under the configured roots: a path, file:///…, or s3://bucket/key."""

    input: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="File, folder or pattern with `*`, or an upload's `uri`."
    )
    output: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None, description="Folder for the result, empty or absent before; none: one made by the service."
    )
    recipe: Recipe = Field(description="How a row becomes a prompt, and an answer columns.")
    model: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="Model name, folder, .gguf file or hub id."
    )
    sampling: SamplingSpec = Field(default=SamplingSpec(), description="How tokens are chosen.")
    keep_columns: tuple[Name, ...] | None = Field(default=None, description="Input columns to carry over; none: all.")
    output_prefix: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_]*$")] = Field(
        default="",
        description="Put before the name of every added column, where an input column has that name already.",
    )
    on_long: OnLong = Field(
        default="error",
        description="What happens to a row too long for the model: an error row, its text cut at the named place, or "
        "(`map_reduce`, for summarize) its chunks are summarised, and then their summaries.",
    )
    reuse: bool = Field(
        default=True,
        description="Compute rows that must have the same answer once, and take answers over from earlier jobs. Rows "
        "sampled without a seed are always computed.",
    )
    reorder: bool = Field(
        default=True,
        description="Compute rows whose prompts begin alike one after the other, among about a thousand at a time. "
        "Results come out in the order of the input either way.",
    )
    max_rows: int | None = Field(default=None, ge=1, lt=2**63, description="Take only the first rows of the input.")
    only_new: OnlyNew | None = Field(
        default=None, description="Of a schedule's job: leave out the rows that its earlier runs have computed."
    )
    shard_rows: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Rows of a shard; none: the setting's."
    )

    priority: int = Field(default=0, ge=-100, le=100, description="Shards of jobs with a higher one are taken first.")
    deadline_seconds: float | None = Field(
        default=None, gt=0, le=366 * 86_400, description="Time from creation after which unfinished rows expire."
    )

    @field_validator("on_long")
    @classmethod
    def _of_summaries(cls, on_long: OnLong, others: ValidationInfo) -> OnLong:
        recipe = others.data.get("recipe")  # absent where it is refused itself
        if on_long == "map_reduce" and recipe is not None and not isinstance(recipe, Summarize):
            raise ValueError(
                f"map_reduce is for the recipe summarize, not for {recipe.kind}; give error, truncate_head, "
                "truncate_tail or truncate_middle"
            )
        return on_long

    @property
    def structure(self) -> OutputFormat | Extract | None:
        """What the answers are held to, if anything."""
        match self.recipe:
            case Extract():
                return self.recipe
            case Generate() | Chat():
                return self.recipe.format
            case _:
                return None

    @model_validator(mode="after")
    def _of_the_rows(self) -> JobSpec:
        if isinstance(self.recipe, OpenAI):
            if self.sampling != SamplingSpec():
                raise ValueError("sampling has no place beside the recipe openai, whose rows bring their own")
            if self.on_long != "error":
                raise ValueError("on_long must be error with the recipe openai: a request is never altered")
        return self

    @model_validator(mode="after")
    def _whole_input(self) -> JobSpec:
        if self.only_new is not None and self.max_rows is not None:
            raise ValueError("max_rows has no place beside only_new: the rows left out would count as computed")
        return self

    @model_validator(mode="after")
    def _ends(self) -> JobSpec:
        if self.structure is None:
            return self
        ends = [name for name in ("stop", "stop_token_ids", "ignore_eos", "min_tokens") if getattr(self.sampling, name)]
        if ends:
            raise ValueError(f"sampling.{ends[0]} has no place beside a format, which says itself where an answer ends")
        if self.structure.forced == "commit" and self.sampling.logprobs is not None:
            raise ValueError("sampling.logprobs are not known of what `forced` = commit writes without the model")
        return self
