"""The structures and numbers that src/ and Python share. Field for field as in src/."""

from __future__ import annotations

import ctypes
from enum import IntEnum


class Format(IntEnum):
    """Number format of weights, or of keys and values."""

    FP32 = 0
    BF16 = 1
    INT8 = 2


class Part(IntEnum):
    """A matrix of a model."""

    QKV = 0
    OUTPUT = 1
    GATE_UP = 2
    DOWN = 3
    EMBEDDING = 4
    HEAD = 5


class Norm(IntEnum):
    """A vector of norm weights of a model."""

    ATTENTION = 0
    MLP = 1
    QUERY = 2
    KEY = 3
    LAST = 4


class Shape(ctypes.Structure):
    """The sizes of a model."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in (
                "vocab_size",
                "hidden_size",
                "num_layers",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "intermediate_size",
                "format",
                "spread",
            )
        ),
        ("eps", ctypes.c_float),
    ]


class WeightBlocks(ctypes.Structure):
    """A matrix of kernels.blocks."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "minimums")),
        *((name, ctypes.c_int32) for name in ("outputs", "inputs", "group", "bits")),
    ]


class Copies(ctypes.Structure):
    """Blocks to copy within the cache."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("num_layers", "num_heads", "dim", "block_size", "format", "count")),
        ("pairs", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("layer_bytes", ctypes.c_int64),
    ]


class Step(ctypes.Structure):
    """One step's inputs and outputs."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in (
                "num_tokens",
                "num_slices",
                "table_width",
                "num_logit_rows",
                "num_threads",
                "block_size",
                "cache_format",
                "reserved",
            )
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "token_ids",
                "positions",
                "slots",
                "query_starts",
                "context_lengths",
                "block_tables",
                "logit_rows",
                "cosines",
                "sines",
                "cache",
            )
        ),
        ("layer_bytes", ctypes.c_int64),
        ("hidden", ctypes.c_void_p),
    ]
