"""Triton's CPU interpreter made right for bf16 and fp8, for tests.

As it comes, `tl.dot` multiplies bf16 by its bit patterns, fp32 is cut instead of rounded to bf16, and some casts to fp8
lose a carry (seen in Triton 3.6 and 3.9). The kernels do no other arithmetic in these formats: they load, cast, take
products and store.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

NARROW = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn}


def _widen(handle: Any) -> np.ndarray:
    """A handle's numbers, bf16 and fp8 as fp32. The interpreter keeps those as whole numbers of their bits."""
    own = NARROW.get(handle.dtype.scalar)
    if own is None:
        return handle.data
    return torch.from_numpy(np.ascontiguousarray(handle.data)).view(own).float().numpy()


def _narrow(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers as the bits of `dtype`, rounded as PyTorch rounds."""
    wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    bits = torch.uint16 if dtype == tl.bfloat16 else torch.uint8
    return wide.to(NARROW[dtype]).view(bits).numpy()


def install() -> None:
    """Replace what is wrong. Call it once, before the first launch."""
    cast, convert = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp

    def repaired(original: Any) -> Any:
        def replacement(self: Any, source: Any, target: Any, *rest: Any) -> Any:
            dtype = target.scalar
            if source.dtype.scalar not in NARROW and dtype not in NARROW:
                return original(self, source, target, *rest)
            values = _widen(source)
            if dtype in NARROW:
                return TensorHandle(_narrow(values, dtype), dtype)
            return TensorHandle(values.astype(interpreter._get_np_dtype(dtype)), dtype)

        return replacement

    def dot(self: Any, left: Any, right: Any, added: Any, *rest: Any) -> Any:
        product = np.matmul(_widen(left), _widen(right), dtype=added.data.dtype)
        return TensorHandle(product + added.data, added.dtype.scalar)

    InterpreterBuilder.cast_impl = repaired(cast)
    InterpreterBuilder.create_fp_to_fp = repaired(convert)
    InterpreterBuilder.create_dot = dot
    # Copying the arguments back only matters for other devices, and would touch all of a cache that is barely used.
    GridExecutor._restore_args_dev = lambda *arguments: None
