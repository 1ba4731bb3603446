"""What torch itself attends with, on dense keys and values: the kernels' peers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.models import ModelConfig
from tests.bench.gpu_stages.shapes import Place, normal


def peers(
    place: Place, config: ModelConfig, batch: int, tokens: int, context: int
) -> Iterator[tuple[str, float | None]]:
    """(name, seconds) of `batch` causal slices of the last `tokens` of `context` positions. None: it cannot."""
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    query = normal(batch, heads, tokens, width, place=place)
    key, value = (normal(batch, kv_heads, context, width, place=place) for _ in range(2))

    def attend() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=tokens > 1, enable_gqa=True)

    kinds = [("math", SDPBackend.MATH)]
    if not place.reduced:
        kinds = [("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)]
    for name, kind in kinds:
        with sdpa_kernel(kind):
            yield f"SDPA {name}", _seconds(place, attend)
    yield "varlen_attn", None if place.reduced else _seconds(place, _varlen(query, key, value))


def _varlen(query: Tensor, key: Tensor, value: Tensor) -> Callable[[], object]:
    """The same slices, packed. A torch whose varlen_attn knows no groups gets every head's own keys and values."""
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, tokens, _ = query.shape
    context = key.shape[2]
    options: dict[str, Any] = {"window_size": (-1, 0)}
    parameters = inspect.signature(varlen_attn).parameters
    if "enable_gqa" in parameters:
        options["enable_gqa"] = True
    else:
        key, value = (each.repeat_interleave(heads // key.shape[1], dim=1) for each in (key, value))
    if "window_size" not in parameters:
        options = {**options, "is_causal": True}
        del options["window_size"]
    packed = [each.transpose(1, 2).flatten(0, 1).contiguous() for each in (query, key, value)]
    starts = [
        torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=query.device)
        for length in (tokens, context)
    ]
    return lambda: varlen_attn(*packed, *starts, tokens, context, **options)


def _seconds(place: Place, launch: Callable[[], object]) -> float | None:
    try:
        return place.seconds(launch)
    except RuntimeError as error:  # a backend that does not take these shapes on this device
        print(f"a peer cannot: {error}", file=sys.stderr)
        return None
