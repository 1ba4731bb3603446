"""EngineStats: what an engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafter.acceptance import DraftStats


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the engine was built, and the state now."""

    steps: int
    prompt_tokens: int  # of requests admitted
    cached_tokens: int  # of these, taken from the prefix cache
    output_tokens: int
    computed_tokens: int  # rows that went through the model: prompts, outputs, drafts, and what was computed again
    slices: int  # sequences, summed over the steps that they were in
    context_tokens: int  # whose keys and values were read, once for each slice
    attended_tokens: int  # that each computed token saw, summed
    logit_rows: int  # of computed_tokens, those that went through the language-model head
    preemptions: int
    max_sequences: int  # that may run together
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    forced_tokens: int  # of outputs, committed because their formats force them
    step_seconds: float  # spent in steps
    model_seconds: float  # of step_seconds, spent in the model; the rest is the host's work
    mask_seconds: float  # spent on filling masks, beside the model
    grammar_seconds: float  # of step_seconds, spent on masks: beginning to fill them, and waiting for them
    drafts: tuple[DraftStats, ...]  # by drafter
