"""Elsewhere: a job's rows on GPUs that are not here, by a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from db.plan_results import PlanDevice
from db.settings import Settings
from engine.config import EngineConfig
from engine.errors import InvalidRequest, OutOfCache
from engine.simulation import Architecture, RooflineCost
from engine.simulation.devices import DEVICES, DeviceProfile
from worker.course import Asked, course_of

SEQUENCES, BUDGET = 512, 8192  # of an engine on a GPU
EFFICIENCY = 0.6  # the share of the roofline that our engine is taken to reach: a guess (docs/simulation.md)
RANKS = (1, 2, 4, 8)  # devices that share a model


@dataclass(frozen=True, slots=True)
class AsSimulated:
    """See worker.course.Tempo. Nothing was computed there that could correct it."""

    cost: RooflineCost

    def seconds(self, simulated: float, answer_tokens: float) -> float:
        return simulated


def gpu_config(
    cost: RooflineCost,
    settings: Settings,
    *,
    max_sequences: int = SEQUENCES,
    token_budget: int = BUDGET,
    prefix_caching: bool = True,
) -> EngineConfig:
    """An engine on the cost's devices, with as many blocks as fit. Raises OutOfCache."""
    config = EngineConfig(
        max_sequences=max_sequences,
        token_budget=token_budget,
        prefix_caching=prefix_caching,
        memory_fraction=settings.engine_memory_fraction,
        max_model_len=cost.architecture.max_position,
    )
    return replace(config, num_blocks=cost.num_blocks(config))


def elsewhere(
    rows: Sequence[Asked],
    learnt: Sequence[tuple[int, ...]],
    num_rows: int,
    host_seconds: float,
    shape: Architecture,
    settings: Settings,
) -> list[PlanDevice]:
    """A job of `num_rows` such rows on each kind of GPU that the model fits, on the fewest of it. What is done beside
    the model takes `host_seconds` as here."""
    found = []
    for profile in DEVICES.values():
        fitting = _fewest(profile, shape, settings)
        if fitting is not None:
            cost, config = fitting
            best, guess = (
                course_of(rows, learnt, num_rows, config, AsSimulated(replace(cost, efficiency=efficiency))).seconds
                for efficiency in (1.0, EFFICIENCY)
            )
            found.append(
                PlanDevice(
                    device=profile.name,
                    count=cost.tensor_parallel,
                    dtype=cost.dtype,
                    seconds=max(guess, host_seconds),
                    least_seconds=max(best, host_seconds),
                )
            )
    return found


def _fewest(
    profile: DeviceProfile, shape: Architecture, settings: Settings
) -> tuple[RooflineCost, EngineConfig] | None:
    """None: not even on most of them, or its heads cannot be divided among these."""
    for ranks in RANKS:
        try:
            cost = RooflineCost(shape, profile, tensor_parallel=ranks)
            return cost, gpu_config(cost, settings)
        except (InvalidRequest, OutOfCache):
            continue
    return None
