"""What the engine says of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine import FORMATS, Machine, driver, instructions
from kernels import native

WIDE = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("features", "formats"),
    [
        ({"avx2", "fma"}, ("AVX2", "AVX2, products in fp32", "AVX2, products in 16 bits", "AVX2")),
        ({"avx2", "fma", "avx_vnni"}, ("AVX2", "AVX2, products in fp32", "AVX-VNNI", "AVX2")),
        (WIDE, ("AVX-512", "AVX-512, products in fp32", "AVX-512, products in 16 bits", "AVX-512")),
        (WIDE | {"avx512_vnni"}, ("AVX-512", "AVX-512, products in fp32", "AVX-512 VNNI", "AVX-512")),
        (WIDE | {"avx512_vnni", "avx512_bf16"}, ("AVX-512", "AVX-512 BF16", "AVX-512 VNNI", "AVX-512")),
        # The sources ask for all four parts of AVX-512 before they use any.
        (
            {"avx2", "fma", "avx512f", "avx512_vnni"},
            ("AVX2", "AVX2, products in fp32", "AVX2, products in 16 bits", "AVX2"),
        ),
    ],
)
def test_instructions(features: set[str], formats: tuple[str, ...]) -> None:
    assert tuple(instructions(name, frozenset(features)) for name in FORMATS) == formats


def test_this_machine() -> None:
    machine = Machine.here()
    assert machine.native == native.reason()
    assert set(machine.formats) == set(FORMATS)
    assert (machine.auto == "int8") == (machine.native is None)
    assert machine.cores >= 1
    assert str(machine).startswith(f"{machine.processor}, {machine.cores} cores, {machine.threads} threads; ")


def test_as_the_doctor_reads_it() -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "worker.machine"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["processor"], found["cores"]) == (Machine.here().processor, Machine.here().cores)
    assert set(found["formats"]) == set(FORMATS)


def test_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert driver(file) is None
    for line, version in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 16 2025\nGCC version: 12", "570.86.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("nothing of the kind", None),
    ):
        file.write_text(line)
        assert driver(file) == version
