"""The native library, loaded, with the types of its functions."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from kernels.native.compiler import NoLibrary, build
from kernels.native.structures import Copies, Shape, Step, WeightBlocks


def open_library(path: Path) -> ctypes.CDLL:
    """Load a library that compiler.build made. Raises NoLibrary."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoLibrary(f"{path} cannot be loaded: {error}") from error
    handle, pointer, number = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
    signatures = {
        "nightmill_create": ([ctypes.POINTER(Shape)], handle),
        "nightmill_destroy": ([handle], None),
        "nightmill_set_matrix": ([handle, number, number, pointer, number, number, pointer], number),
        "nightmill_set_blocks": ([handle, number, number, ctypes.POINTER(WeightBlocks), pointer], number),
        "nightmill_set_norm": ([handle, number, number, pointer, number], number),
        "nightmill_finish": ([handle], number),
        "nightmill_forward": ([handle, ctypes.POINTER(Step)], number),
        "nightmill_logits": ([handle, pointer, number, number, pointer], number),
        "nightmill_copy_blocks": ([ctypes.POINTER(Copies)], None),
        "nightmill_largest": ([handle, pointer, number, pointer, pointer, number, pointer, pointer], number),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


@cache
def library() -> ctypes.CDLL:
    """The library of this machine, built on first use. Raises NoLibrary, each time anew."""
    return open_library(build())
