"""Tests of Triton kernels in Triton's interpreter. It is chosen before the first import of Triton, for a whole
process, so these run in a process of their own: tests/kernels/test_interpreted.py starts it."""

from __future__ import annotations

import os

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]

if INTERPRETED:
    import torch

    from tests.gpu.interpreter import install

    install()
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _nan_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel's wrapper allocates begins as NaN, or as a conspicuous whole number."""
    import torch

    plain = torch.empty

    def poisoned(*size: object, **options: object) -> torch.Tensor:
        made = plain(*size, **options)  # type: ignore[call-overload]
        if made.dtype.is_floating_point and made.dtype.itemsize > 1:
            return made.fill_(torch.nan)
        if made.dtype == torch.float8_e4m3fn:
            made.view(torch.uint8).fill_(0x7F)
            return made
        return made.fill_(0x5A) if made.dtype != torch.bool else made

    monkeypatch.setattr(torch, "empty", poisoned)
