"""What launches depend on besides their arguments: the GPU."""

import functools

import torch
import triton

PER_PROCESSOR = 4  # programs of the short attention kernel that fit a multiprocessor at once (docs/kernels.md)
INTERPRETED = 3  # few and odd, so that tests see programs take several turns


@functools.cache
def num_programs(device: torch.device) -> int:
    """As many as run at once on a device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count) * PER_PROCESSOR
    return INTERPRETED


def has_wgmma() -> bool:
    """Whether the GPU that kernels are compiled for has Hopper's matrix instructions. The interpreter takes part."""
    return bool(triton.knobs.runtime.interpret or triton.runtime.driver.active.get_current_target().arch >= 90)
