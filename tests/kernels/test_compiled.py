"""The kernels compile for A100 and H100 without spills, within shared memory, with tensor cores; and the gate that says
so notices what it is there for. docs/kernels.md is the whole table."""

from __future__ import annotations

import sys

import pytest
import torch
import triton
import triton.language as tl

if not sys.platform.startswith("linux"):
    pytest.skip("Triton compiles for GPUs on Linux alone", allow_module_level=True)

from tests.gpu_compile.cases import CASES
from tests.gpu_compile.compiler import SHARED, compile_launches

PAIRS = [
    pytest.param(case, arch, marks=() if case.quick and arch == 90 else pytest.mark.slow, id=f"{case.name}-{arch}")
    for case in CASES
    for arch in case.arches
]


@pytest.mark.parametrize(("case", "arch"), PAIRS)
def test_kernels(case, arch):
    compiled = compile_launches(case.launch, arch)
    assert compiled
    assert {each.kernel for each in compiled} >= set(case.tensor_cores)
    for each in compiled:
        assert each.arch == arch
        assert each.faults(tensor_cores=each.kernel in case.tensor_cores) == []


def test_prompts_use_hoppers_own_instruction():
    case = next(case for case in CASES if case.tensor_cores)
    mma = {each.kernel: each.mma for each in compile_launches(case.launch, 90)}
    assert "HGMMA" in mma["long_kernel"]
    assert "HMMA" in mma["short_kernel"]


@triton.jit
def product_kernel(p_a, p_b, p_out, SIZE: tl.constexpr, DEPTH: tl.constexpr):
    """A product of whole matrices [SIZE, DEPTH] in one program; how much it needs is up to the caller."""
    o_size, o_depth = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    b_sum = tl.zeros([SIZE, SIZE], tl.float32)
    for i_step in range(8):
        b_a = tl.load(p_a + i_step * DEPTH + o_size[:, None] * DEPTH + o_depth[None, :])
        b_b = tl.load(p_b + i_step * DEPTH + o_depth[:, None] * SIZE + o_size[None, :])
        b_sum = tl.dot(b_a, b_b, acc=b_sum)
    tl.store(p_out + o_size[:, None] * SIZE + o_size[None, :], b_sum)


def planted(size: int, depth: int, **options: int) -> list[str]:
    matrix = torch.zeros(size * depth, dtype=torch.bfloat16)
    out = torch.zeros(size * size)
    launch = product_kernel[(1,)]
    (found,) = compile_launches(lambda: launch(matrix, matrix, out, SIZE=size, DEPTH=depth, **options), 90)
    return found.faults(tensor_cores=True)


def test_the_gate_lets_a_modest_kernel_pass():
    assert planted(64, 64, num_warps=4, num_stages=2) == []


def test_the_gate_notices_spills():
    (fault,) = planted(256, 32, num_warps=4, num_stages=1)
    assert fault.endswith(" spills")


def test_the_gate_notices_too_much_shared_memory():
    (fault,) = planted(128, 256, num_warps=8, num_stages=4)
    assert fault.endswith(f"bytes of shared memory, {SHARED[90][0]} are there")


@triton.jit
def plain_kernel(p_x, p_out):
    tl.store(p_out, tl.load(p_x) * 2)


def test_the_gate_notices_missing_tensor_cores():
    x = torch.zeros(4)
    (found,) = compile_launches(lambda: plain_kernel[(1,)](x, x), 80)
    assert found.faults(tensor_cores=True) == ["no tensor-core instruction"]
    assert found.faults(tensor_cores=False) == []
    assert found.arch == 80
