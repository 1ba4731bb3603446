"""Machine: what this computer brings, and what the engine computes each number format with. Logged at the start."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels import native
from kernels.native.compiler import cpu_features

# What any of the native code's paths asks for, in the words of /proc/cpuinfo, the oldest first.
LOOKED_FOR = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16")
UNUSED = ("amx_tile", "amx_int8", "amx_bf16")  # the machine may have them; no code of ours asks for them
FORMATS = ("fp32", "bf16", "int8", "weights alone")  # of weights on a CPU
WIDE = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})


@dataclass(frozen=True, slots=True)
class Machine:
    """`formats` says what each format of weights is computed with; `native` why native code does not run, if so."""

    processor: str
    cores: int  # that this process may use
    threads: int  # that torch would use
    features: tuple[str, ...]
    unused_features: tuple[str, ...]
    native: str | None
    formats: dict[str, str]
    auto: str  # the format that dtype=auto stands for
    gpus: tuple[str, ...]  # that torch can use
    cuda: str | None  # that torch was built with
    driver: str | None  # NVIDIA's, as the kernel tells it

    @classmethod
    def here(cls) -> Machine:
        """This machine. The first call may compile the native code, for some seconds."""
        features, reason = cpu_features(), native.reason()
        return cls(
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            threads=torch.get_num_threads(),
            features=tuple(name for name in LOOKED_FOR if name in features),
            unused_features=tuple(name for name in UNUSED if name in features),
            native=reason,
            formats={name: instructions(name, features) if reason is None else "PyTorch" for name in FORMATS},
            auto="int8" if reason is None else "fp32",
            gpus=tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())),
            cuda=torch.version.cuda,
            driver=driver(),
        )

    def __str__(self) -> str:
        """One line for a log."""
        formats = ", ".join(f"{name} with {used}" for name, used in self.formats.items())
        code = "native code" if self.native is None else f"no native code ({self.native})"
        return f"{self.processor}, {self.cores} cores, {self.threads} threads; {code}: {formats}"


def instructions(format: str, features: frozenset[str]) -> str:
    """What the native code multiplies a format with on a CPU of these features: the choice that its sources make."""
    wide = features >= WIDE
    vectors = "AVX-512" if wide else "AVX2"
    if format == "bf16":
        return "AVX-512 BF16" if wide and "avx512_bf16" in features else f"{vectors}, products in fp32"
    if format == "int8":
        if wide and "avx512_vnni" in features:
            return "AVX-512 VNNI"
        if not wide and "avx_vnni" in features:
            return "AVX-VNNI"
        return f"{vectors}, products in 16 bits"
    return vectors


def driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's kernel module; None where none is loaded, or none is shown to this container."""
    try:
        found = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d[\d.]*)", path.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _processor() -> str:
    """The CPU's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, os.uname().machine)
