"""Sampler: logits -> accepted tokens. Drafts are verified here, choices scored.

A draft token is accepted when it is the very token that would have been chosen there without a draft, so speculation
changes no output, greedy or sampled: the choice at a position depends on the logits, the request's parameters and the
uniform number of (seed, position) alone. The exception: tokens that a draft model drew at random, for a request
without a seed of its own, are accepted or not by rejection sampling. That changes no distribution.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch import INVALID, NOTHING, Batch, Sampled
from engine.choice import Choice, TorchChoice
from engine.philox import ACCEPTANCE, RESIDUAL, uniform
from engine.rejection import resolve
from engine.request import TokenLogprobs
from engine.sequence import Sequence
from kernels.sampling import most_probable


class Row(NamedTuple):
    """A row of logits that asks for more than the most probable token."""

    line: int  # its place in the logits
    sequence: Sequence
    offset: int  # draft tokens that stand between the output and this row's choice


class Sampler:
    """Stateless: random numbers come from a counter (philox.py), penalties from the sequences."""

    def __init__(self, choice: Choice | None = None) -> None:
        """`choice`: PyTorch's if none is given."""
        self._choice: Choice = choice or TorchChoice()

    @torch.inference_mode()
    def sample(self, logits: Tensor, batch: Batch) -> list[Sampled]:
        """What the logits [R, vocab] of a batch say, one Sampled per slice. Overwrites the logits.

        Scores of choices go into their sequences' Scoring. Greedy rows are an argmax, without a softmax.
        """
        counts = batch.num_logits
        rows = _special_rows(batch, counts)
        generating = [row for row in rows if row.sequence.scoring is None]
        _penalise(logits, [row for row in generating if row.sequence.history is not None])
        _forbid_stops(logits, generating)
        best, greedy = most_probable(logits)
        valid: list[bool] = best.isfinite().tolist()
        drawn = [row for row in generating if valid[row.line] and not row.sequence.request.sampling.greedy]
        tokens: list[int] = greedy.tolist()
        for row, token in zip(drawn, _draw(logits, drawn, self._choice), strict=True):
            tokens[row.line] = token
        contested = [row for row in drawn if _draft_chances(row) is not None]
        for row, token in zip(contested, _resolve(logits, contested), strict=True):
            tokens[row.line] = token
        asking = [row for row in generating if valid[row.line] and row.sequence.logprobs is not None]
        logprobs = _logprobs(logits, asking, tokens)
        _score(logits, [row for row in rows if row.sequence.scoring is not None and valid[row.line]])
        return _verify(batch, counts, tokens, valid, logprobs)


def settle(most: Tensor, tokens: Tensor, batch: Batch) -> list[Sampled]:
    """What the largest logit of each row [R] and its token [R] say of a batch of plain sequences."""
    return _verify(batch, batch.num_logits, tokens.tolist(), most.isfinite().tolist(), {})


def _special_rows(batch: Batch, counts: list[int]) -> list[Row]:
    """The rows of all sequences that are not plain. `counts` are the slices' numbers of logits."""
    rows = []
    index = 0
    for (sequence, start, _), count in zip(batch.slices, counts, strict=True):
        if count and not sequence.plain:
            # Paths of choices are walked in parts, so a slice may begin inside the path.
            skipped = max(start - len(sequence.tokens) + 1, 0)
            rows += [Row(index + i, sequence, skipped + i) for i in range(count)]
        index += count
    return rows


def _verify(
    batch: Batch, counts: list[int], tokens: list[int], valid: list[bool], logprobs: dict[int, TokenLogprobs]
) -> list[Sampled]:
    """Accept each slice's draft as far as the chosen tokens agree, and the first token that differs or follows."""
    results = []
    index = 0
    sound = all(valid)
    for (sequence, _, _), count in zip(batch.slices, counts, strict=True):
        stop = index + count
        if not sound and not all(valid[index:stop]):
            results.append(INVALID)
        elif count == 1 and sequence.plain:  # nearly all of them
            results.append(Sampled([tokens[index]]))
        elif count == 0 or sequence.scoring is not None:
            results.append(NOTHING)
        else:
            last = index
            for proposed in sequence.draft[: count - 1]:
                if tokens[last] != proposed:
                    break
                last += 1
            asked = [logprobs[i] for i in range(index, last + 1)] if sequence.logprobs is not None else None
            results.append(Sampled(tokens[index : last + 1], asked))
        index = stop
    return results


def _penalise(logits: Tensor, rows: list[Row]) -> None:
    """Apply repetition, presence and frequency penalties in place. A draft counts as output up to the row."""
    if not rows:
        return
    ids, counts, lengths = [], [], []
    for row in rows:
        history = row.sequence.history
        assert history is not None, "only rows with penalties come here"
        draft = row.sequence.draft[: row.offset]
        added = []
        for token in draft:
            added.append((token, token not in history))
            history.add(token)
        ids.append(history.ids.tobytes())
        counts.append(history.counts.tobytes())
        lengths.append(len(history.ids))
        for token, new in reversed(added):
            history.undo(token, new=new)
    device = logits.device

    def spread(values: list[float]) -> Tensor:
        return torch.tensor(np.repeat(np.array(values, np.float32), lengths), device=device)

    column = torch.tensor(np.frombuffer(b"".join(ids), np.int64).copy(), device=device)
    count = torch.tensor(np.frombuffer(b"".join(counts), np.int64).copy(), device=device)
    line = torch.tensor(np.repeat([row.line for row in rows], lengths), device=device)
    sampling = [row.sequence.request.sampling for row in rows]
    repetition = spread([each.repetition_penalty for each in sampling])
    value = logits[line, column]
    value = torch.where(value > 0, value / repetition, value * repetition)
    value -= spread([each.presence_penalty for each in sampling]) * (count > 0)
    value -= spread([each.frequency_penalty for each in sampling]) * count
    logits[line, column] = value


def _forbid_stops(logits: Tensor, rows: list[Row]) -> None:
    """Rule out, in place, every token that would end the output before min_tokens."""
    lines: list[int] = []
    columns: list[int] = []
    for line, sequence, offset in rows:
        if sequence.num_output + offset < sequence.request.sampling.min_tokens:
            columns += sequence.stop_ids
            lines += [line] * len(sequence.stop_ids)
    if lines:
        logits[lines, columns] = -torch.inf


def _draw(logits: Tensor, rows: list[Row], choice: Choice) -> list[int]:
    """Draw the tokens of rows with a temperature."""
    if not rows:
        return []
    seeds = np.array([row.sequence.seed for row in rows], np.uint64)
    positions = np.array([len(row.sequence.tokens) + row.offset for row in rows], np.uint64)
    chosen = logits[[row.line for row in rows]]
    sampling = [row.sequence.request.sampling for row in rows]
    tokens: list[int] = choice.draw(chosen, sampling, seeds, positions).tolist()
    return tokens


def _draft_chances(row: Row) -> NDArray[np.float32] | None:
    """What the draft token that a row verifies was drawn from; None where it is a plain guess, or there is none."""
    chances = row.sequence.chances
    return chances[row.offset] if row.offset < len(chances) else None


def _resolve(logits: Tensor, rows: list[Row]) -> list[int]:
    """Keep or replace the draft tokens of rows that were drawn at random."""
    if not rows:
        return []
    seeds = np.array([row.sequence.seed for row in rows], np.uint64)
    positions = np.array([len(row.sequence.tokens) + row.offset for row in rows], np.uint64)
    acceptance, residual = (
        torch.from_numpy(uniform(seeds, positions, stream)).to(logits.device) for stream in (ACCEPTANCE, RESIDUAL)
    )
    drafted = torch.tensor([row.sequence.draft[row.offset] for row in rows], device=logits.device)
    tables = [table for row in rows if (table := _draft_chances(row)) is not None]
    chances = torch.from_numpy(np.stack(tables)).to(logits.device)
    sampling = [row.sequence.request.sampling for row in rows]
    chosen = logits[[row.line for row in rows]]
    tokens: list[int] = resolve(chosen, sampling, drafted, chances, acceptance, residual).tolist()
    return tokens


def _logprobs(logits: Tensor, rows: list[Row], tokens: list[int]) -> dict[int, TokenLogprobs]:
    """Log-probabilities of the chosen and the most probable tokens, by row of logits."""
    if not rows:
        return {}
    lines = [row.line for row in rows]
    chosen = [tokens[line] for line in lines]
    table = logits[lines].log_softmax(-1)
    own = table[range(len(rows)), chosen].tolist()
    wanted = [row.sequence.request.sampling.logprobs or 0 for row in rows]
    values, places = (part.tolist() for part in table.topk(min(max(wanted), table.shape[-1]), dim=-1))
    return {
        line: TokenLogprobs(chosen[i], own[i], tuple(zip(places[i][:count], values[i][:count], strict=True)))
        for i, (line, count) in enumerate(zip(lines, wanted, strict=True))
    }


def _score(logits: Tensor, rows: list[Row]) -> None:
    """Record the exact log-probabilities of what may follow the path of choices at each row."""
    if not rows:
        return
    lines: list[int] = []
    columns: list[int] = []
    wanted = []
    for line, sequence, depth in rows:
        assert sequence.scoring is not None, "only rows with choices come here"
        followers = sequence.scoring.followers(depth)
        columns += followers
        lines += [line] * len(followers)
        wanted.append((sequence.scoring, depth, len(followers)))
    normaliser = logits.new_zeros(len(logits))
    scored = [row.line for row in rows]
    normaliser[scored] = logits[scored].logsumexp(-1)
    logprobs = (logits[lines, columns] - normaliser[lines]).tolist()
    start = 0
    for scoring, depth, count in wanted:
        scoring.record(depth, logprobs[start : start + count])
        start += count
