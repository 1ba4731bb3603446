"""Number formats: from the names of a configuration to what this machine computes in."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.devices import uses_kernels
from engine.errors import InvalidRequest
from kernels import native

UINT4: torch.dtype = torch.uint4  # type: ignore[attr-defined]  # torch's stubs lack it
# The codes of weights alone are unsigned (kernels.blocks), which sets them apart from int8 weights and activations.
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "int8_weight_only": torch.uint8,
    "int4_weight_only": UINT4,
}
WEIGHT_ONLY_BITS = {torch.uint8: 8, UINT4: 4}


def weight_dtype(name: str, device: str = "cpu") -> torch.dtype:
    """What weights are kept in: int8 and fp8 stand for 8-bit weights and activations (W8A8), uint8 and uint4 for 8- and
    4-bit weights alone.

    `auto` is the fastest that costs next to no quality. Raises InvalidRequest for an unknown name, and for fp8
    without a GPU.
    """
    if name == "auto":
        if device.startswith("cuda"):
            return torch.bfloat16
        return torch.int8 if device == "cpu" and native.available() else torch.float32
    if name not in DTYPES:
        raise InvalidRequest("dtype", name, f"must be one of auto, {', '.join(DTYPES)}")
    if name == "fp8" and not uses_kernels(device):
        raise InvalidRequest("dtype", name, "needs a GPU")
    return DTYPES[name]


def products_dtype(weights: torch.dtype, device: str) -> torch.dtype:
    """What lies between the products of a model in PyTorch or on a GPU, by what its weights are kept in."""
    if weights in (torch.float32, torch.bfloat16):
        return weights
    return torch.bfloat16 if device.startswith("cuda") else torch.float32


def cache_dtype(config: EngineConfig) -> torch.dtype:
    """What keys and values are kept in. `auto` is the weights' own format, where the machine has it.

    Raises InvalidRequest for int8 without native code, and for fp8 without a GPU.
    """
    if config.kv_dtype != "auto":
        if config.kv_dtype == "int8" and not (config.device == "cpu" and native.available()):
            raise InvalidRequest("kv_dtype", config.kv_dtype, f"needs native code: {native.reason()}")
        if config.kv_dtype == "fp8" and not uses_kernels(config.device):
            raise InvalidRequest("kv_dtype", config.kv_dtype, "needs a GPU")
        return DTYPES[config.kv_dtype]
    dtype = weight_dtype(config.dtype, config.device)
    if dtype == torch.int8 and config.device == "cpu" and native.available():
        return dtype
    return products_dtype(dtype, config.device)
