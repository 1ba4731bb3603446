"""Checkpoints that are quantised already: GPTQ, AWQ and compressed-tensors, as their own codes or as stored fp8.

What a module's tensors mean follows AutoGPTQ, AutoAWQ and compressed-tensors. Which modules are quantised the tensors
themselves say, so lists of exceptions need not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelError, UnsupportedModel
from engine.fields import Fields
from engine.models.fusion import Stored
from engine.models.matrices import Fp8Matrix
from kernels.blocks import Blocks

Parts = Mapping[str, Tensor]  # of one module, by what follows its name
Unpack = Callable[[Parts], Stored]
METHODS = ("gptq", "awq", "compressed-tensors")
INSTEAD = "take the checkpoint that it was made of and choose a dtype (docs/number_formats.md)"
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # of the eight outputs in a word: where the first, second, … lies
# Scales of activations that were measured beforehand: ours are measured row by row.
UNREAD = frozenset({"input_scale", "input_zero_point"})


def unpacker(fields: Fields) -> Unpack | None:
    """What makes a matrix of a quantised module's tensors; None where config.json says nothing of quantisation.

    Raises UnsupportedModel that names what is not supported.
    """
    config = fields.nested("quantization_config")
    if not config.values:
        return None
    method = str(config.values.get("quant_method", "of no name"))
    if method == "gptq":
        return _gptq(config)
    if method == "awq":
        return _awq(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    raise _unsupported(config, f"method {method}; supported are {', '.join(METHODS)}")


def _unsupported(config: Fields, reason: str) -> UnsupportedModel:
    return UnsupportedModel(config.path, f"quantization_config: {reason}; {INSTEAD}")


def _option(config: Fields, name: str, known: tuple[Any, ...], default: Any) -> Any:
    """A value out of those that are supported; an absent one is the default, whatever that is."""
    value = config.values.get(name, default)
    if value not in known or isinstance(value, bool) != isinstance(known[0], bool):
        raise _unsupported(config, f"{name}={value!r}; supported: {', '.join(map(str, known))}")
    return value


def _group_size(config: Fields) -> int | None:
    """Inputs that share a scale; None: all of them."""
    value = config.values.get("group_size", 128)
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise _unsupported(config, f"group_size={value!r} is neither a positive whole number nor -1")
    return None if value == -1 else value


def _gptq(config: Fields) -> Unpack:
    bits: int = _option(config, "bits", (4, 8), None)
    # The first format stores zero points less 1.
    offset = 1 if _option(config, "checkpoint_format", ("gptq", "gptq_v2"), "gptq") == "gptq" else 0
    group = _group_size(config)

    def unpack(parts: Parts) -> Stored:
        codes = _unpacked(parts["qweight"], bits, 0).t()
        zeros = (_unpacked(parts["qzeros"], bits, 1) + offset) & (2**bits - 1)
        return _matrix(codes, parts["scales"].t(), zeros.t(), group, bits, parts.get("g_idx"))

    return unpack


def _awq(config: Fields) -> Unpack:
    bits: int = _option(config, "bits", (4,), None)
    _option(config, "version", ("gemm", "GEMM"), "gemm")
    _option(config, "zero_point", (True,), True)
    group = _group_size(config)

    def ordered(words: Tensor) -> Tensor:
        unpacked = _unpacked(words, bits, 1)
        return unpacked.view(len(unpacked), -1, 8)[..., AWQ_ORDER].flatten(1)

    def unpack(parts: Parts) -> Stored:
        codes, zeros = ordered(parts["qweight"]).t(), ordered(parts["qzeros"]).t()
        return _matrix(codes, parts["scales"].t(), zeros, group, bits, None)

    return unpack


def _compressed_tensors(config: Fields) -> Unpack:
    for name in ("transform_config", "sparsity_config", "kv_cache_scheme"):
        if config.values.get(name):
            raise _unsupported(config, name)
    groups = config.nested("config_groups")
    schemes = {_scheme(groups.nested(name), config) for name in groups.values}
    if len(schemes) != 1:
        raise _unsupported(config, f"{len(schemes)} schemes for weights; one is supported")
    bits, kind, group = schemes.pop()

    def unpack(parts: Parts) -> Stored:
        scales = parts["weight_scale"].float()
        if kind == "float":
            values = parts["weight"]
            return Fp8Matrix(values, scales.reshape(-1, 1).expand(len(values), 1).contiguous())
        half = 2 ** (bits - 1)
        if "weight_packed" in parts:
            outputs, inputs = parts["weight_shape"].tolist()
            codes = _unpacked(parts["weight_packed"], bits, 1)[:outputs, :inputs]
        else:
            codes = parts["weight"].to(torch.int32) + half
            outputs = len(codes)
        scales = scales.reshape(-1, scales.shape[-1] if scales.ndim == 2 else 1).expand(outputs, -1)
        zeros = torch.full_like(scales, half, dtype=torch.int32)
        if "weight_zero_point" in parts:
            given = parts["weight_zero_point"]
            packed = given.dtype == torch.int32 and "weight_packed" in parts
            zeros = _unpacked(given, bits, 0)[:outputs] if packed else given.to(torch.int32).reshape(-1, 1) + half
        return _matrix(codes, scales, zeros.expand(scales.shape), group, bits, parts.get("weight_g_idx"))

    return unpack


def _scheme(scheme: Fields, config: Fields) -> tuple[int, str, int | None]:
    """Bits, kind of numbers and size of the groups of one of compressed-tensors' groups of modules."""
    weights = scheme.nested("weights")
    if not weights.values:
        raise _unsupported(config, "config_groups of activations alone")
    kind = _option(weights, "type", ("int", "float"), "int")
    bits: int = _option(weights, "num_bits", (8,) if kind == "float" else (4, 8), 8)
    known = ("tensor", "channel") if kind == "float" else ("tensor", "channel", "group")
    strategy = _option(weights, "strategy", known, "tensor")
    _option(config, "format", ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"), None)
    return bits, kind, _group_size(weights) if strategy == "group" else None


def _unpacked(words: Tensor, bits: int, dim: int) -> Tensor:
    """Numbers of `bits` each [R, C] int32 that are packed into 32-bit words along `dim`, in the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    wide = words.to(torch.int32).unsqueeze(dim + 1)
    parts: Tensor = (wide >> (shifts[:, None] if dim == 0 else shifts)) & (2**bits - 1)
    return parts.flatten(dim, dim + 1)


def _matrix(
    codes: Tensor, scales: Tensor, zeros: Tensor, group: int | None, bits: int, group_of: Tensor | None
) -> Stored:
    """The matrix of scale * (code - zero): codes [out, in], scales and zeros [out, groups].

    `group_of` [in] says which group an input is of. Where groups are no neighbours (act-order), it comes as numbers.
    """
    inputs, wide = codes.shape[1], scales.float()
    own = group or inputs
    minimums = wide * -zeros
    if group_of is not None and not torch.equal(group_of.long(), torch.arange(inputs) // own):
        return codes * wide[:, group_of.long()] + minimums[:, group_of.long()]
    if scales.shape[1] != -(-inputs // own):
        raise ValueError(f"{scales.shape[1]} scales in a row of {inputs} inputs in groups of {own}")
    return Blocks(codes.to(torch.uint8).contiguous(), wide.contiguous(), minimums.contiguous(), own, bits)


def matrix_of(name: str, parts: Parts, unpack: Unpack, path: object) -> Stored:
    """The matrix of module `name`. Raises ModelError where its tensors do not fit together."""
    try:
        return unpack(parts)
    except KeyError as error:
        raise ModelError(path, f"{name} has no {error.args[0]}") from None
    except (RuntimeError, ValueError, IndexError) as error:
        raise ModelError(path, f"the quantised tensors of {name} do not fit together: {error}") from error
