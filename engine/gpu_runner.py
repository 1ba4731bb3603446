"""GpuRunner: ModelRunner for GPUs. Steps are sent over in one copy, prepared by one kernel, and replayed as CUDA graphs
where they are decodes and drafts alone. Importing this imports Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.cache import KVCache
from engine.device_rows import DeviceRows, send
from engine.inputs import Inputs
from engine.models import Model
from engine.runner import ModelRunner
from engine.step import Step
from kernels.gpu.attention import SHORT, SHORT_ROWS, SPLIT, bounds
from kernels.gpu.steps import prepare_inputs

# Tokens of a step that is padded to one of these. Steps of more are not worth a graph: they keep a GPU busy anyway.
SIZES = (1, 2, 4, 8, *range(16, 256, 16), *range(256, 1025, 64))
STRETCHES = 16  # of the context, for which a graph has room per token on average: SPLIT times as many positions
ALIGNED = 4  # whole numbers: parts of the copied block begin at multiples of 16 bytes


class GpuRunner(ModelRunner):
    """What it computes may be overwritten by the next step."""

    def __init__(
        self, model: Model, cache: KVCache, max_model_len: int, max_sequences: int, *, graphs: bool = True
    ) -> None:
        """`max_model_len` is what no context exceeds, `max_sequences` the number of rows. Without `graphs` every step
        runs as it comes."""
        super().__init__(model, cache)
        self._group = model.config.num_heads // model.config.num_kv_heads
        self.rows = DeviceRows(max(max_sequences, SIZES[-1]), -(-max_model_len // cache.block_size), cache.device)
        self._most_stretches = min(-(-max_model_len // SPLIT), STRETCHES)
        self._sizes = SIZES if graphs else ()
        self._steps: dict[int, _FixedStep] = {}  # by tokens
        self._pool = torch.cuda.graph_pool_handle() if cache.device.type == "cuda" else None

    @torch.inference_mode()
    def prepare_step(self, step: Step) -> Step:
        if self._cache.device.type == "cuda":
            torch.cuda.set_device(self._cache.device)  # Triton launches on the thread's own, whatever the tensors say
        self._cache.copy(step.copies)
        self.rows.update(step.rows, step.block_tables)
        return step

    def free_memory(self) -> None:
        """Let go of what can be made again: the graphs, and the memory that they compute in."""
        if self._cache.device.type == "cuda":
            torch.cuda.synchronize(self._cache.device)  # one of them may be running
        self._steps.clear()
        if self._cache.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def run(self, prepared: Step) -> Tensor:
        step = prepared
        counts, num_tokens = np.diff(step.query_starts), len(step.tokens)
        work = bounds(counts, step.context_lengths, self._group)
        size = next((size for size in self._sizes if size >= num_tokens), None)
        if size is not None and counts.max() <= SHORT and work[0] <= self._room(size):
            return self._fixed(size).run(step)[: step.num_logits]
        parts = step.arrays[:-1]  # block tables are there
        packed = send(np.concatenate([_aligned(part) for part in parts]), self._cache.device)
        sizes = [len(part) for part in parts]
        return self._model.forward(self._prepare(packed, sizes, num_tokens, step.num_logits, work), self._cache)

    def _room(self, size: int) -> int:
        """Pieces of attention work that a fixed step of `size` tokens has room for."""
        return size * -(-self._group // SHORT_ROWS) * self._most_stretches

    def _fixed(self, size: int) -> _FixedStep:
        if size not in self._steps:
            # Every token may be a slice of its own.
            sizes = [size + 1, size, size, size + 1, size, size]
            work = (self._room(size), 0)

            def compute(packed: Tensor) -> Tensor:
                return self._model.forward(self._prepare(packed, sizes, size, size, work), self._cache)

            self._steps[size] = _FixedStep(sizes, compute, self._cache.device, self._pool)
        return self._steps[size]

    def _prepare(
        self, packed: Tensor, sizes: list[int], num_tokens: int, num_logits: int, work: tuple[int, int]
    ) -> Inputs:
        starts, contexts, owned, logit_starts, tokens, rows = _parts(packed, sizes)
        tables = self.rows.tables(rows)
        index = (starts, contexts, owned, logit_starts, tables, self._cache.block_size)
        made = prepare_inputs(*index, tokens, rows, self.rows.last, num_tokens, num_logits)
        token_ids, positions, slots, logit_rows = made
        return Inputs(token_ids, positions, slots, starts, contexts, tables, logit_rows, work)


class _FixedStep:
    """A step of a fixed number of tokens and slices, padded with slices of none; on a GPU a graph, captured once."""

    def __init__(
        self,
        sizes: list[int],
        compute: Callable[[Tensor], Tensor],
        device: torch.device,
        pool: Any,
    ) -> None:
        self._sizes = sizes
        self._compute = compute
        total = sum(len(_aligned(np.empty(size, np.int32))) for size in sizes)
        self._staged = torch.zeros(total, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._packed = torch.zeros(total, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._hidden: Tensor | None = None
        if device.type == "cuda":
            self._capture(pool)

    def run(self, step: Step) -> Tensor:
        """The hidden states of a step, with more rows behind them that mean nothing. Overwritten by the next step."""
        if self._copied is not None:
            self._copied.synchronize()  # the last copy has read what is staged; computing may still go on
        starts, contexts, owned, logit_starts, tokens, rows = (
            part.numpy() for part in _parts(self._staged, self._sizes)
        )
        num_slices = len(step.context_lengths)
        for room, own in ((starts, step.query_starts), (logit_starts, step.logit_starts)):
            room[: num_slices + 1] = own
            room[num_slices + 1 :] = own[-1]
        for room, own in (
            (contexts, step.context_lengths),
            (owned, step.owned),
            (tokens, step.tokens),
            (rows, step.rows),
        ):
            room[: len(own)] = own
            room[len(own) :] = 0
        self._packed.copy_(self._staged, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        if self._graph is None:
            return self._compute(self._packed)
        self._graph.replay()
        assert self._hidden is not None, "captured with the graph"
        return self._hidden

    def _capture(self, pool: Any) -> None:
        """Capture a step of no slices, once what it launches is compiled."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._compute(self._packed)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):  # others may allocate
            self._hidden = self._compute(self._packed)


def _aligned(values: NDArray[Any]) -> NDArray[Any]:
    return np.pad(values, (0, -len(values) % ALIGNED))


def _parts(packed: Tensor, sizes: list[int]) -> list[Tensor]:
    """Views of the parts that were packed one behind the other."""
    views, start = [], 0
    for size in sizes:
        views.append(packed[start : start + size])
        start += -(-size // ALIGNED) * ALIGNED
    return views
