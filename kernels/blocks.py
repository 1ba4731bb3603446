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


MOST_PIECE = 32
LEAST_PIECE = 16  # inputs: tensor cores take no fewer


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Blocks as kernels.gpu.codes reads them.

    Inputs come in pieces; the codes of one piece lie together for every output. Of 4 bits, the low halves of bytes are
    one piece and the high halves the next one.
    """

    codes: Tensor  # [pieces or pairs of pieces, out, piece] uint8
    scales: Tensor  # [groups, out] fp32
    minimums: Tensor  # [groups, out] fp32
    group: int
    bits: int

    @classmethod
    def of(cls, blocks: Blocks, device: torch.device) -> PackedBlocks:
        """Raises ValueError for groups that no piece fits."""
        outputs, inputs = blocks.shape
        piece = min(blocks.group & -blocks.group, MOST_PIECE)
        if piece < LEAST_PIECE:
            raise ValueError(f"groups of {blocks.group} inputs are no multiple of {LEAST_PIECE}")
        step = piece * 8 // blocks.bits
        codes = F.pad(blocks.codes.to(device), (0, -inputs % step)).view(outputs, -1, step // piece, piece)
        packed = codes[:, :, 0] if blocks.bits == 8 else codes[:, :, 0] | codes[:, :, 1] << 4
        # What lies beyond the last input is multiplied with zeros, but is read: it needs a scale that is a number.
        groups = -(-codes[0].numel() // blocks.group)
        scales, minimums = (
            F.pad(part.to(device), (0, groups - part.shape[1])).t().contiguous()
            for part in (blocks.scales, blocks.minimums)
        )
        return cls(packed.transpose(0, 1).contiguous(), scales, minimums, blocks.group, blocks.bits)

    @property
    def outputs(self) -> int:
        return self.codes.shape[1]

    @property
    def piece(self) -> int:
        return self.codes.shape[2]
