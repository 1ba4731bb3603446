"""The decoder stack as native code for this machine's CPU; kernels/reference.py stays the definition of every op.

It is compiled by the system's C++ compiler on first use. Where that is not possible everything else works without it.
"""

from __future__ import annotations

from kernels.native.compiler import NoLibrary
from kernels.native.decoder import Decoder
from kernels.native.library import library
from kernels.native.structures import Format, Norm, Part

__all__ = ["Decoder", "Format", "NoLibrary", "Norm", "Part", "available", "reason"]


def available() -> bool:
    """Whether native code runs here. The first call may compile for some seconds."""
    return reason() is None


def reason() -> str | None:
    """Why native code does not run here, in one line; None where it does."""
    try:
        library()
    except NoLibrary as error:
        return error.reason
    return None
