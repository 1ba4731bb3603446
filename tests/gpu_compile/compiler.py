"""Compiles what a host wrapper launches, for a GPU that is not there, and reads the result back.

A stub stands in for the driver, so that the project's own wrappers, called with CPU tensors, give Triton the very
specialisation of a real launch: alignments, numbers equal to 1, widths of whole numbers. ptxas and cuobjdump come with
Triton. Found so: compile errors, spills, too much shared memory, missing tensor-core instructions. Not found so: races,
wrong grids, speed. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# Shared memory in bytes that a block may ask for, and that a multiprocessor has (CUDA programming guide, table of
# compute capabilities).
SHARED = {80: (166_912, 167_936), 90: (232_448, 233_472)}
REGISTERS = 65_536  # of a multiprocessor
THREADS = 2048


class StubDriver:
    """What a launch asks of a driver before it compiles."""

    def __init__(self, arch: int) -> None:
        self._arch = arch
        self._target = GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._arch  # a device for each, or the kernel compiled for one would be found again for the other

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def is_active(self) -> bool:
        return True


@dataclass(frozen=True)
class Compiled:
    """One kernel as the GPU would run it."""

    kernel: str
    arch: int
    warps: int
    registers: int  # of a thread
    shared: int  # bytes of a block
    spills: int  # stores to and loads from local memory
    mma: str  # the tensor-core instruction and how often it stands there
    wide_loads: int  # of 16 bytes, from global memory to registers or shared memory

    @property
    def blocks(self) -> int:
        """That fit a multiprocessor at once."""
        registers = -(-self.registers // 8) * 8 * 32 * self.warps
        reserved = self.shared + 1024
        return min(REGISTERS // registers, SHARED[self.arch][1] // reserved, THREADS // (32 * self.warps), 32)

    def faults(self, *, tensor_cores: bool) -> list[str]:
        """Why it must not be shipped."""
        found = []
        if self.spills:
            found.append(f"{self.spills} spills")
        if self.shared > SHARED[self.arch][0]:
            found.append(f"{self.shared} bytes of shared memory, {SHARED[self.arch][0]} are there")
        if tensor_cores and not self.mma:
            found.append("no tensor-core instruction")
        return found


@contextmanager
def compiling(arch: int) -> Iterator[list[Compiled]]:
    """Within, every launch is compiled for sm_`arch` and listed instead of run."""
    listed: list[Compiled] = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(self, *arguments, grid=grid, warmup=True, **options)
        listed.append(_read(made.result() if hasattr(made, "result") else made, arch))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", compile_only)
        patch.setattr(driver, "_active", StubDriver(arch))
        yield listed


def compile_launches(launch: Callable[[], object], arch: int) -> list[Compiled]:
    """What `launch` launches, each kernel once."""
    with compiling(arch) as listed:
        launch()
    return list(dict.fromkeys(listed))


def _read(kernel: Any, arch: int) -> Compiled:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage, code = (_dump(option, path) for option in ("--dump-resource-usage", "--dump-sass"))
    match = re.search(r"REG:(\d+)", usage)
    assert match is not None, usage
    found = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HGMMA", "HMMA", "QGMMA", "IGMMA", "IMMA")}
    return Compiled(
        kernel.metadata.name,
        arch,
        kernel.metadata.num_warps,
        int(match[1]),
        kernel.metadata.shared,
        len(re.findall(r"\b(?:STL|LDL)\b", code)),
        ", ".join(f"{count} {name}" for name, count in found.items() if count),
        len(re.findall(r"\b(?:LDG|LDGSTS)\.E\.(?:\w+\.)*128\b", code)),
    )


def _dump(option: str, path: Path) -> str:
    done = subprocess.run([TOOLS / "cuobjdump", option, path], capture_output=True, text=True, check=True)
    return done.stdout
