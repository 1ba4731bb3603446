"""Jump: many decode steps at once, with the same blocks taken, filled and evicted as one by one. No torch here.

While nothing is admitted, ends or runs out of blocks, every step of a scheduler is the last one again, each context a
token longer. What is left of it are the blocks: which sequence takes or fills one in which step follows from lengths.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from engine.blocks import BlockPool
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.work import Work

TAKE, FILL = 0, 1  # in the order in which a step does them for a sequence


class Jump(NamedTuple):
    """`steps` steps that were made: their work together, and the sum over them of the blocks in use."""

    steps: int
    work: Work
    used_blocks: int


def jump(scheduler: Scheduler, pool: BlockPool, steps: int, tokens: Items[int], *, prefix_caching: bool) -> Jump | None:
    """Make as many steps of these, at most, as there are blocks for. None: of not even one.

    The last step computed one token of every running sequence and admitted none, nothing was added since that it would
    have, and in each of the steps every running sequence goes on with its token of `tokens`, oldest first.
    """
    running, size = scheduler.running, pool.block_size
    steps = _possible(running, size, steps, pool.num_available)
    settled = all(each.num_sealed == each.computed // size for each in running) or not prefix_caching
    if steps < 1 or not settled:
        return None
    events = []
    for index, sequence in enumerate(running):
        computed = sequence.computed
        first = len(sequence.blocks) * size - computed + 1
        events += [(step, index, TAKE) for step in range(first, steps + 1, size)]
        if prefix_caching:
            events += [(step, index, FILL) for step in range(size - computed % size, steps + 1, size)]
    events.sort()
    before = sum(sequence.computed for sequence in running)
    for sequence, token in zip(running, tokens, strict=True):
        sequence.tokens.extend([token] * steps)
        sequence.computed += steps
    used = pool.num_used * steps
    for step, index, kind in events:
        sequence = running[index]
        if kind == TAKE:
            sequence.blocks.extend(pool.take(1))
            used += steps - step + 1
        else:
            _fill(pool, sequence)
    scheduler.num_computed_tokens += steps * len(running)
    # The step j of them reads what was computed before it and its own token.
    context = before * steps + len(running) * steps * (steps + 1) // 2
    count = steps * len(running)
    return Jump(steps, Work(count, count, context, context, count), used)


def _possible(running: Items[Sequence], size: int, steps: int, available: int) -> int:
    """How many of the steps there are blocks for."""
    if len(running) * (steps // size + 1) <= available:
        return steps
    firsts = [len(sequence.blocks) * size - sequence.computed + 1 for sequence in running]
    for step in range(1, steps + 1):
        available -= sum(1 for first in firsts if step >= first and (step - first) % size == 0)
        if available < 0:
            return step - 1
    return steps


def _fill(pool: BlockPool, sequence: Sequence) -> None:
    """Publish the next block of a sequence; what is in it belongs to no other."""
    index, size = sequence.num_sealed, pool.block_size
    tokens = sequence.tokens[index * size : (index + 1) * size]
    new = pool.seal(sequence.blocks, index, tokens, written=False, root=pool.root(sequence.request.owner))
    assert new, "made-up tokens of one sequence were published by another"
    sequence.num_sealed += 1
