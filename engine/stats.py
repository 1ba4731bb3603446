"""EngineStats: what an engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the engine was built, and the state now."""

    steps: int
    prompt_tokens: int  # of requests admitted
    cached_tokens: int  # of these, taken from the prefix cache
    output_tokens: int
    computed_tokens: int  # rows that went through the model: prompts, outputs, drafts, and what was computed again
    preemptions: int
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
