"""Writes docs/kernels.md: every kernel as compiled for the GPUs that it is meant for.

python -m tests.gpu_compile.table
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton

from tests.gpu_compile.cases import CASES
from tests.gpu_compile.compiler import compile_launches

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
HEAD = """# Kernels as compiled

Every Triton kernel of `kernels/gpu`, compiled ahead of time through its own host wrapper with Triton {version}, at the
shapes of Llama-3-8B where the case says nothing else. sm_80 is A100, sm_90 is H100 and H200; what needs fp8 is compiled
for sm_90 alone. *Spills* are stores to and loads from local memory, *blocks* how many fit a multiprocessor at once,
*wide loads* those of 16 bytes. This says nothing about speed: that needs a GPU. Written by `make kernels`; a test keeps
the gates (no spills, shared memory within the limit, tensor-core instructions in attention).

| case | kernel | GPU | warps | registers | shared memory | spills | blocks | tensor cores | wide loads |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    lines, faults = [], []
    for case in CASES:
        for arch in case.arches:
            for one in compile_launches(case.launch, arch):
                found = one.faults(tensor_cores=one.kernel in case.tensor_cores)
                faults += [f"{case.name}, {one.kernel}, sm_{arch}: {fault}" for fault in found]
                name = one.kernel.strip("_").removesuffix("_kernel")
                numbers = f"{one.warps} | {one.registers} | {one.shared:,} | {one.spills} | {one.blocks}"
                lines.append(f"| {case.name} | {name} | sm_{arch} | {numbers} | {one.mma or '—'} | {one.wide_loads} |")
                print(lines[-1], flush=True)
    PAGE.write_text(HEAD.format(version=triton.__version__) + "\n".join(lines) + "\n")
    print("\n".join(faults) or "no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
