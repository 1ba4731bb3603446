"""What devices there are, and which number formats they take."""

from __future__ import annotations

import pytest
import torch

from engine import EngineConfig, InvalidRequest
from engine.devices import torch_device, uses_kernels
from engine.dtypes import cache_dtype, weight_dtype


def test_the_interpreter_computes_on_cpu_tensors_by_the_gpus_path() -> None:
    assert torch_device("interpret") == torch_device("cpu") == torch.device("cpu")
    assert torch_device("cuda:1") == torch.device("cuda", 1)
    assert [uses_kernels(name) for name in ("cpu", "interpret", "cuda", "cuda:1")] == [False, True, True, True]


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cpu:0", "mps"])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(InvalidRequest, match="must be cpu, cuda, cuda:N or interpret") as caught:
        EngineConfig(device=device)
    assert caught.value.field == "device"


def test_what_a_gpu_keeps_weights_in() -> None:
    assert weight_dtype("auto", "cuda:0") == torch.bfloat16
    assert weight_dtype("fp32", "cuda") == torch.float32
    assert weight_dtype("int8", "cuda") == torch.int8
    assert weight_dtype("fp8", "cuda") == torch.float8_e4m3fn
    with pytest.raises(InvalidRequest, match="dtype='fp8': needs a GPU"):
        weight_dtype("fp8", "cpu")


def test_what_a_gpu_keeps_keys_and_values_in() -> None:
    assert cache_dtype(EngineConfig(device="cuda", dtype="auto")) == torch.bfloat16
    for dtype in ("fp8", "int8", "int8_weight_only", "int4_weight_only"):
        assert cache_dtype(EngineConfig(device="cuda", dtype=dtype)) == torch.bfloat16
    assert cache_dtype(EngineConfig(device="cuda", kv_dtype="fp8")) == torch.float8_e4m3fn
    with pytest.raises(InvalidRequest, match="kv_dtype='fp8': needs a GPU"):
        cache_dtype(EngineConfig(kv_dtype="fp8"))
    with pytest.raises(InvalidRequest, match="kv_dtype='int8'"):
        cache_dtype(EngineConfig(device="cuda", kv_dtype="int8"))
