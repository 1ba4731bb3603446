"""Counters: what an engine counts as it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.blocks import BlockPool
from engine.drafter.acceptance import DraftStats
from engine.scheduler import Scheduler
from engine.stats import EngineStats
from engine.work import NO_WORK, Work


@dataclass(slots=True)
class Counters:
    """Since the engine was built; see EngineStats for what they mean."""

    max_sequences: int
    steps: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    mask_seconds: float = 0.0
    work: Work = NO_WORK

    def stats(
        self, scheduler: Scheduler, pool: BlockPool, drafts: tuple[DraftStats, ...], seconds: Mapping[str, float]
    ) -> EngineStats:
        """A snapshot, together with the state of the queues and the pool. `seconds`: by part of a step (clock.py)."""
        return EngineStats(
            steps=self.steps,
            prompt_tokens=scheduler.num_prompt_tokens,
            cached_tokens=scheduler.num_cached_tokens,
            output_tokens=self.output_tokens,
            computed_tokens=scheduler.num_computed_tokens,
            slices=self.work.sequences,
            context_tokens=self.work.context,
            attended_tokens=self.work.attended,
            logit_rows=self.work.rows,
            preemptions=scheduler.num_preemptions,
            max_sequences=self.max_sequences,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            forced_tokens=self.forced_tokens,
            step_seconds=sum(seconds.values()),
            model_seconds=seconds["model"],
            mask_seconds=self.mask_seconds,
            grammar_seconds=seconds["masks"],
            drafts=drafts,
        )
