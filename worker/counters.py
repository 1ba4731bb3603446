"""Counters: what the engine did while a job had rows in it.

The engine serves several jobs at once and counts for all of them together. A job is given what was counted while any
of its shards was at work in this process: exact when it has the engine to itself, else with the others' work in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from engine import EngineStats

# Flat: steps, preemptions, …, and `drafts.NAME.proposed` and the like for each drafter.
Counters: TypeAlias = Mapping[str, float]

# Not counts.
STATES = frozenset({"max_sequences", "running", "waiting", "blocks_total", "blocks_used", "blocks_cached"})
# Of how many shards these counts have other jobs' work in them.
BESIDE = "shards_beside_other_jobs"
MOST_LEFT = 64  # jobs whose counters nobody came for: cancelled ones


def counters_of(stats: EngineStats | None) -> Counters:
    """What only grows. Empty for an engine that has done nothing yet."""
    if stats is None:
        return {}
    values = asdict(stats)
    drafts = values.pop("drafts")
    flat = {name: value for name, value in values.items() if name not in STATES}
    for draft in drafts:
        name = draft.pop("name")
        flat |= {f"drafts.{name}.{key}": value for key, value in draft.items()}
    return flat


def added(one: Counters, other: Counters, sign: int = 1) -> Counters:
    return {name: one.get(name, 0) + sign * other.get(name, 0) for name in {**one, **other}}


def shown(counters: Counters) -> dict[str, Any]:
    """As the manifest has them: drafters by name, with the rates that follow."""
    flat: dict[str, Any] = {name: value for name, value in counters.items() if not name.startswith("drafts.")}
    drafts: dict[str, dict[str, float]] = {}
    for name, value in counters.items():
        if name.startswith("drafts."):
            _, drafter, key = name.split(".", 2)
            drafts.setdefault(drafter, {})[key] = value
    for draft in drafts.values():
        proposed, accepted, steps = (draft.get(key, 0) for key in ("proposed", "accepted", "steps"))
        draft["acceptance_rate"] = accepted / proposed if proposed else 0.0
        draft["tokens_per_step"] = accepted / steps if steps else 0.0
    return {**flat, "drafts": drafts} if drafts else flat


class Meters:
    """What was counted for each job since it was last asked. All calls under the Runner's lock."""

    def __init__(self) -> None:
        self._at_work: dict[str, set[int]] = {}  # sources by job
        self._since: dict[str, Counters] = {}
        self._beside: set[str] = set()  # jobs that had company since they were last asked
        self._left: OrderedDict[str, Counters] = OrderedDict()  # of jobs that are not at work now

    def join(self, job: str, source: int, now: Counters) -> None:
        if job not in self._at_work:
            self._at_work[job], self._since[job] = set(), now
        self._at_work[job].add(source)
        self._note_company()

    def leave(self, job: str, source: int, now: Counters) -> None:
        at_work = self._at_work.get(job, set())
        if source not in at_work:  # from before `restart`
            return
        at_work.remove(source)
        if not at_work:
            del self._at_work[job]
            self._left[job] = added(self._left.get(job, {}), added(now, self._since.pop(job), -1))
            while len(self._left) > MOST_LEFT:
                forgotten, _ = self._left.popitem(last=False)
                self._beside.discard(forgotten)

    def take(self, job: str, now: Counters) -> Counters:
        """What came together since the last call for this job."""
        counted = self._left.pop(job, {})
        if job in self._at_work:
            counted = added(counted, added(now, self._since[job], -1))
            self._since[job] = now
        if job in self._beside:
            self._beside.remove(job)
            counted = added(counted, {BESIDE: 1})
        self._note_company()
        return counted

    def _note_company(self) -> None:
        if len(self._at_work) > 1:
            self._beside |= self._at_work.keys()

    def restart(self) -> None:
        """The engine is gone, and the next one counts from zero."""
        self._at_work.clear()
        self._since.clear()
        self._beside.clear()
