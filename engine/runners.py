"""runner_of: what runs a model where the configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.cache import KVCache
from engine.config import EngineConfig
from engine.devices import uses_kernels
from engine.models import Model
from engine.models.attention import EAGER
from engine.runner import ModelRunner, Runner

if TYPE_CHECKING:
    from engine.chooser import Chooser


def runner_of(model: Model, cache: KVCache, config: EngineConfig) -> Runner:
    if not uses_kernels(config.device):
        return ModelRunner(model, cache)
    from engine.gpu_runner import GpuRunner  # imports Triton, which not every machine has

    sizes = (config.max_model_len or model.config.max_position, config.max_sequences)
    return GpuRunner(model, cache, *sizes, graphs=config.attention not in EAGER)


def chooser_of(runner: Runner) -> Chooser | None:
    """What chooses tokens where the runner computes. None: the host has to."""
    if type(runner) is ModelRunner:
        return None
    from engine.chooser import Chooser
    from engine.gpu_runner import GpuRunner

    return Chooser(runner, runner.rows) if isinstance(runner, GpuRunner) else None
