"""Tiny checkpoints as GPTQ, AWQ and compressed-tensors store them, packed here in NumPy by what their tools write, and
the same models with the numbers that the codes stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.tiny_models import make

WEIGHTS = "model.safetensors"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of AutoAWQ's pack
Quantise = Callable[[Tensor, np.random.Generator], tuple[dict[str, Tensor], Tensor]]  # the tensors, the numbers


def pack(codes: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Codes [R, C] -> int32 [R, C * bits / 32]."""
    per_word = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_word))).astype(np.uint32)
    words = np.zeros((len(codes), padded.shape[1] // per_word), np.uint32)
    for i, place in enumerate(order or range(per_word)):
        words |= padded[:, place::per_word] << np.uint32(bits * i)
    return torch.from_numpy(words.view(np.int32).copy())


def grid(
    weight: Tensor, group: int, bits: int, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """Codes [out, in], scales and zeros [out, groups], and what they stand for."""
    outputs, inputs = weight.shape
    values = weight.numpy().reshape(outputs, inputs // group, group)
    top = 2**bits - 1
    if symmetric:
        scales = (np.abs(values).max(-1) / (top / 2)).astype(np.float16)
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        least, most = np.minimum(values.min(-1), 0), np.maximum(values.max(-1), 0)
        scales = ((most - least) / top).astype(np.float16)
        zeros = np.clip(np.round(-least / scales), 0, top).astype(int)
    codes = np.clip(np.round(values / scales[..., None].astype(np.float32)) + zeros[..., None], 0, top).astype(int)
    numbers = (codes - zeros[..., None]) * scales[..., None].astype(np.float32)
    return codes.reshape(outputs, inputs), scales, zeros, torch.from_numpy(numbers.reshape(outputs, inputs)).float()


def gptq(*, group: int, bits: int, symmetric: bool, offset: int = 1, act_order: bool = False) -> Quantise:
    def quantise(weight: Tensor, random: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
        own = weight.shape[1] if group == -1 else group
        order = random.permutation(weight.shape[1]) if act_order else np.arange(weight.shape[1])
        codes, scales, zeros, numbers = grid(weight[:, order], own, bits, symmetric=symmetric)
        back = np.argsort(order)
        tensors = {
            "qweight": pack(codes[:, back], bits).t().contiguous(),
            "qzeros": pack(zeros.T - offset & 2**bits - 1, bits),
            "scales": torch.from_numpy(scales.T.copy()),
            "g_idx": torch.from_numpy((back // own).astype(np.int32)),
            "bias": torch.zeros(len(weight), dtype=torch.float16),
        }
        return tensors, numbers[:, back]

    return quantise


def awq(*, group: int) -> Quantise:
    def quantise(weight: Tensor, random: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
        own = weight.shape[1] if group == -1 else group
        codes, scales, zeros, numbers = grid(weight, own, 4, symmetric=False)
        packed = {"qweight": pack(codes.T, 4, AWQ_ORDER), "qzeros": pack(zeros.T, 4, AWQ_ORDER)}
        return packed | {"scales": torch.from_numpy(scales.T.copy())}, numbers

    return quantise


def packed(*, group: int | None, bits: int, symmetric: bool) -> Quantise:
    """compressed-tensors' pack-quantized."""

    def quantise(weight: Tensor, random: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
        codes, scales, zeros, numbers = grid(weight, group or weight.shape[1], bits, symmetric=symmetric)
        tensors = {
            "weight_packed": pack(codes, bits),
            "weight_scale": torch.from_numpy(scales),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = pack(zeros.T, bits).t().contiguous()
        return tensors, numbers

    return quantise


def int8(weight: Tensor, random: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """compressed-tensors' int-quantized, a scale for every output."""
    codes, scales, _, numbers = grid(weight, weight.shape[1], 8, symmetric=True)
    return {"weight": torch.from_numpy(codes - 128).to(torch.int8), "weight_scale": torch.from_numpy(scales)}, numbers


def fp8(*, per_tensor: bool) -> Quantise:
    """compressed-tensors' float-quantized."""

    def quantise(weight: Tensor, random: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
        most = weight.abs().amax() if per_tensor else weight.abs().amax(1, keepdim=True)
        scale = (most / 448).bfloat16()
        values = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors = {"weight": values, "weight_scale": scale.reshape(1) if per_tensor else scale}
        if per_tensor:
            tensors["input_scale"] = torch.ones(1, dtype=torch.bfloat16)
        return tensors, values.float() * scale.float()

    return quantise


def compressed(kind: str, bits: int, strategy: str, format: str, **options: Any) -> dict[str, Any]:
    weights = {"type": kind, "num_bits": bits, "strategy": strategy, "group_size": None} | options
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}


def write(folder: Path, kind: str, config: dict[str, Any], quantise: Quantise) -> tuple[Path, Path]:
    """A model with its layers' matrices quantised, and its twin of the numbers these stand for."""
    stored, twin = folder / "stored", folder / "twin"
    made = make(kind, hidden_size=128, intermediate_size=256)
    for path in (stored, twin):
        made.save_pretrained(path)
    random = np.random.default_rng(0)
    tensors, numbers = load_file(stored / WEIGHTS), load_file(twin / WEIGHTS)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        parts, values = quantise(tensors.pop(name), random)
        stem = name.removesuffix(".weight")
        kept = {key: part for key, part in parts.items() if f"{stem}.{key}" not in tensors}
        tensors |= {f"{stem}.{key}": part.contiguous() for key, part in kept.items()}
        numbers[name] = values.contiguous()
    save_file(tensors, stored / WEIGHTS)
    save_file(numbers, twin / WEIGHTS)
    file = stored / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": config}))
    return stored, twin
