"""Products whose bits do not depend on how many rows are computed together, on a GPU.

What else a step computes is so by construction (docs/kernels.md). Of cuBLASLt's ways only split-K is not: it adds up
parts in an order that follows from the shape. Without workspace, and told not to reduce in bf16, it cannot be chosen.
"""

from __future__ import annotations

import os

import torch

from engine.errors import InvalidRequest

WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}  # read when CUDA starts


def make_deterministic() -> None:
    """For the whole process. Raises InvalidRequest when CUDA has been started without it."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if started and any(os.environ.get(name) != value for name, value in WORKSPACE.items()):
        settings = " ".join(f"{name}={value}" for name, value in WORKSPACE.items())
        raise InvalidRequest("deterministic", True, f"CUDA has been started in this process already; set {settings}")
    os.environ.update(WORKSPACE)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = (False, False)  # the second: no split-K
    matmul.allow_fp16_reduced_precision_reduction = (False, False)
