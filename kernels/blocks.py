"""Matrices of 4- or 8-bit weights beside fp32 or bf16 rows (weight-only): the definition, in plain PyTorch.

Neighbouring inputs of an output share a scale and a minimum, as in GGUF's Q4_1 (ggml's docs) and in AWQ and GPTQ
checkpoints, all of which this holds without loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 32  # of what is quantised here


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [out, in]: an element is its group's scale times its code, plus its group's minimum."""

    codes: Tensor  # [out, in] uint8, below 2^bits
    scales: Tensor  # [out, groups] fp32
    minimums: Tensor  # [out, groups] fp32
    group: int  # inputs; the last group of a row may have fewer
    bits: int

    @classmethod
    def of(cls, matrix: Tensor, bits: int, group: int = GROUP) -> Blocks:
        """Quantise a matrix [out, in]. Scales and minimums are rounded to fp16, as GGUF does."""
        outputs, inputs = matrix.shape
        parts = F.pad(matrix.float(), (0, -inputs % group), mode="replicate") if inputs % group else matrix.float()
        parts = parts.view(outputs, -1, group)
        least, most = parts.amin(-1), parts.amax(-1)
        top = 2**bits - 1
        minimums = least.half().float()
        scales = ((most - minimums) / top).half().float()
        inverse = torch.where(scales > 0, 1.0 / scales, 0.0)
        codes = ((parts - minimums[..., None]) * inverse[..., None]).round_().clamp_(0, top).to(torch.uint8)
        return cls(codes.view(outputs, -1)[:, :inputs].contiguous(), scales, minimums, group, bits)

    @classmethod
    def cat(cls, parts: Sequence[Blocks]) -> Blocks:
        """Matrices of as many inputs, one below the other, in the widest codes and the largest groups all can have."""
        group = gcd(*(part.group for part in parts)) if len({part.group for part in parts}) > 1 else parts[0].group
        same = [part.regrouped(group) for part in parts]
        return cls(
            torch.cat([part.codes for part in same]),
            torch.cat([part.scales for part in same]),
            torch.cat([part.minimums for part in same]),
            group,
            max(part.bits for part in parts),
        )

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Blocks:
        """The matrix whose codes, scales and minimums are the function's."""
        codes, scales, minimums = map(function, (self.codes, self.scales, self.minimums))
        return replace(self, codes=codes, scales=scales, minimums=minimums)

    def rows(self, index: Tensor) -> Blocks:
        """Some of its outputs."""
        return self.mapped(lambda values: values[index])

    def chunk(self, count: int, dim: int) -> tuple[Blocks, ...]:
        """As Tensor.chunk, in equal parts."""
        if dim == 0:
            return tuple(self.rows(part) for part in torch.arange(self.shape[0]).chunk(count))
        size = self.shape[1] // count
        same = self.regrouped(gcd(self.group, size))

        def part(index: int) -> Blocks:
            return same.mapped(lambda values: values.chunk(count, 1)[index].contiguous())

        return tuple(map(part, range(count)))

    def regrouped(self, group: int) -> Blocks:
        """The same matrix in groups of `group` inputs, a divisor of its own or one that covers a row."""
        if group == self.group:
            return self
        assert self.group % group == 0, "groups are split, never joined"
        counts = -(-self.shape[1] // group)
        scales, minimums = (
            part.repeat_interleave(self.group // group, 1)[:, :counts] for part in (self.scales, self.minimums)
        )
        return Blocks(self.codes, scales, minimums, group, self.bits)

    def padded(self, size: int, stretch: int) -> Blocks:
        """With zero features put behind every `size` inputs, which become `stretch`; `size` divides the inputs."""
        outputs = self.shape[0]
        parts = self.regrouped(gcd(self.group, size, stretch))

        def pad(values: Tensor, per: int) -> Tensor:
            return F.pad(values.reshape(outputs, -1, size // per), (0, (stretch - size) // per)).flatten(1)

        scales, minimums = (pad(values, parts.group) for values in (parts.scales, parts.minimums))
        return Blocks(pad(parts.codes, 1), scales, minimums, parts.group, parts.bits)

    def dequantised(self) -> Tensor:
        """[out, in] fp32."""
        inputs = self.shape[1]
        scales, minimums = (part.repeat_interleave(self.group, 1)[:, :inputs] for part in (self.scales, self.minimums))
        return self.codes.float().mul_(scales).add_(minimums)
