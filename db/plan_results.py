"""What a plan says of a job that is not submitted yet. A worker makes it, the API passes it on."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Figures(BaseModel):
    """Part of a plan. A newer worker may say more than this API knows of."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Interval(Figures):
    """An estimate, and the 80 % interval around it: of ten true values, eight lie between `low` and `high`."""

    value: float
    low: float
    high: float


class PlanRows(Figures):
    total: int = Field(description="Rows of the job.")
    read: int = Field(description="Of these, read, rendered and tokenised for the plan.")
    sampled: int = Field(description="Of these, computed.")
    duplicates: int | None = Field(
        description="Rows that are answered with an equal row's answer; none where not every row was read."
    )
    too_long: Interval = Field(description="Rows too long for the model: `on_long` says what becomes of them.")
    failing: Interval = Field(description="Rows that will be error rows.")
    causes: dict[str, int] = Field(description="Rows of the input, read or sampled, by the code of their error.")


class Memory(Figures):
    bytes_per_token: int = Field(description="2 x layers x key/value heads x head size x bytes of the number format.")
    bytes_per_sequence: int = Field(description="Of a mean prompt with its whole answer.")
    cache_bytes: int
    sequences: int = Field(description="So many of these fit into the cache.")


class PlanExample(Figures):
    row: int = Field(description="Index in the input.")
    output: str | None
    finish_reason: str
    error: str | None


class PlanDevice(Figures):
    """The job on GPUs that nobody has to have, by a roofline of their data sheets. Answers are taken to be as long."""

    device: str
    count: int = Field(description="The fewest that the model fits; they share it.")
    dtype: str = Field(description="Of the weights.")
    seconds: float = Field(description="Of all rows, at six tenths of the roofline: a guess, not measured.")
    least_seconds: float = Field(description="At the whole roofline, which no engine beats.")


Limit = Literal["weights", "kv_memory", "prefill_compute", "decode_compute", "host"]


class PlanResult(Figures):
    model_fingerprint: str
    rows: PlanRows
    prompt_tokens: Interval
    output_tokens: Interval
    total_tokens: Interval = Field(description="Of prompts and answers together.")
    cached_share: float = Field(description="Share of the prompts' tokens that the prefix cache will serve.")
    seconds: Interval = Field(
        description="From the submission to the end, on the workers present and with no other job."
    )
    workers: int = Field(description="Of which so many have a part in it.")
    rows_per_second: float
    tokens_per_second: float = Field(description="Prompts' tokens, cached ones included, and answers'.")
    cost: Interval | None = Field(description="`seconds` at the setting `price_per_hour`, for each worker.")
    memory: Memory
    limit: Limit = Field(
        description="What takes most of the time: loading the weights, reading keys and values or having no room for "
        "more of them, computing prompts, computing answers, or the work beside the model."
    )
    shares: dict[Limit, float] = Field(description="Each one's share of the time.")
    devices: list[PlanDevice] = Field(
        default=[], description="The same job elsewhere; empty where the model's shape is not known."
    )
    examples: list[PlanExample]
