"""What formats cost and what speculation brings, with the demo model on this machine's processors.

    python -m tests.bench.speculation [--dtype auto] [--repetitions 3] [--part w3 w2]

w3 (extraction, 64 sequences): rows per second with speculation over without, and the share of step time that formats
take. w2 (summarising): the same ratio at 1, 4, 16 and 64 sequences. One engine each, interleaved; every repetition has
freshly salted prompts and a group of its own, so nothing of an earlier one is known. A ratio is taken inside a
repetition; the median counts. Beside them stands the most that speculation could gain on w3. A verified token costs no
less than a token of a prompt, and no more of them can be accepted than are when all guesses are verified, whatever that
costs; so it is the time without speculation over what is left when so many output tokens cost as much as a prompt's.
Exits 1 when w3 gains less than 1.3 times, formats take 5 % of step time or more, or w2 loses more than 3 % at any size.
Prints the gain on w3 last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, EngineStats, Format, LoadedModel, Output, Request, SamplingParams, load
from engine.drafter import StepCosts
from tests.bench.workloads import Item, salted
from tests.bench.workloads import load as load_workload

LEAST_GAIN = 1.3
FREE = StepCosts(((1, 1.0), (1000, 1.001)))  # verifying costs nothing: every guess is verified
MOST_FORMAT_SHARE = 0.05
LEAST_ON_W2 = 0.97
ROWS = {1: 4, 4: 12, 16: 32, 64: 64}  # of w2, by the number of sequences at a time


def requests(items: list[Item], group: object) -> list[Request]:
    return [
        Request(
            number,
            item.prompt_ids,
            SamplingParams(max_tokens=item.max_tokens, ignore_eos=item.ignore_eos),
            format=Format("json_schema", json.dumps(item.schema)) if item.schema else None,  # type: ignore[arg-type]
            group=group,
        )
        for number, item in enumerate(items)
    ]


def run(model: LoadedModel, wanted: list[Request]) -> tuple[float, dict[object, Output]]:
    """Seconds and outputs."""
    start = time.perf_counter()
    outputs = {output.id: output for output in model.engine.generate(wanted)}
    return time.perf_counter() - start, outputs


def pair(dtype: str, sequences: int) -> tuple[LoadedModel, LoadedModel]:
    """An engine without and one with speculation, warm, each with so many sequences at a time."""
    path = find("smollm2-135m", Settings())
    plain, guessing = (
        load(path, EngineConfig(dtype=dtype, max_sequences=sequences, speculation=speculation))
        for speculation in (False, True)
    )
    for model in (plain, guessing):
        run(model, requests(salted(load_workload("w2")[:1], 40), "warm"))
    return plain, guessing


def compare(
    plain: LoadedModel, guessing: LoadedModel, name: str, sequences: int, repetitions: int
) -> tuple[list[float], list[float]]:
    """Rows per second without and with speculation, by repetition. The outputs must be the same."""
    items = load_workload(name)
    if name == "w2":
        items = items[: ROWS[sequences]]
    rates: tuple[list[float], list[float]] = ([], [])
    for repetition in range(repetitions):
        wanted = requests(salted(items, 50 + repetition), (name, sequences, repetition))
        results = {}
        order = (0, 1) if repetition % 2 else (1, 0)
        for which in order:
            seconds, results[which] = run((plain, guessing)[which], wanted)
            rates[which].append(len(wanted) / seconds)
        texts = [{key: output.tokens for key, output in results[which].items()} for which in (0, 1)]
        assert texts[0] == texts[1], "speculation changed an output"
    return rates


def ceiling(plain: LoadedModel, dtype: str, repetitions: int) -> tuple[float, float]:
    """The most that speculation could gain on w3, see above, and the share of the output tokens that are accepted."""
    lavish = load(find("smollm2-135m", Settings()), EngineConfig(dtype=dtype), costs=FREE)
    items = load_workload("w3")
    gains: list[float] = []
    shares: list[float] = []
    accepted: list[int] = []
    for repetition in range(repetitions):
        wanted = requests(salted(items, 150 + repetition), ("w3", repetition))
        before = plain.engine.stats()
        whole, outputs = run(plain, wanted)
        computed = plain.engine.stats().computed_tokens - before.computed_tokens
        short = [
            replace(request, sampling=SamplingParams(max_tokens=1))
            for request in requests(salted(items, 250 + repetition), ("short", repetition))
        ]
        prompts, _ = run(plain, short)
        run(lavish, wanted)
        written = sum(output.num_output_tokens - 1 for output in outputs.values())
        drafted = sum(each.accepted for each in lavish.engine.stats().drafts) - sum(accepted)
        accepted.append(drafted)
        saved = drafted * ((whole - prompts) / written - prompts / (computed - written))
        gains.append(whole / (whole - saved))
        shares.append(drafted / written)
    return statistics.median(gains), statistics.median(shares)


def format_share(before: EngineStats, after: EngineStats) -> float:
    return (after.grammar_seconds - before.grammar_seconds) / (after.step_seconds - before.step_seconds)


def drafters(stats: EngineStats) -> Table:
    table = Table("drafter", "proposed", "accepted", "rate", "accepted per verification", title="drafts on w3")
    for each in stats.drafts:
        rate = f"{each.accepted / each.proposed:.2f}" if each.proposed else ""
        table.add_row(each.name, str(each.proposed), str(each.accepted), rate, f"{each.tokens_per_step:.2f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--part", nargs="+", choices=("w2", "w3"), default=("w2", "w3"))
    options = parser.parse_args()
    console = Console()
    table = Table("workload", "sequences", "rows/s without", "rows/s with", "ratio (least to largest)")
    fine = True
    gain = share = None
    parts = [("w3", 64)] * ("w3" in options.part) + [("w2", size) for size in ROWS if "w2" in options.part]
    for name, sequences in parts:
        plain, guessing = pair(options.dtype, sequences)
        before = plain.engine.stats()
        without, with_it = compare(plain, guessing, name, sequences, options.repetitions)
        ratios = [b / a for a, b in zip(without, with_it, strict=True)]
        ratio = statistics.median(ratios)
        fine &= ratio >= (LEAST_GAIN if name == "w3" else LEAST_ON_W2)
        rates = [f"{statistics.median(each):.2f}" for each in (without, with_it)]
        table.add_row(name, str(sequences), *rates, f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        if name == "w3":
            gain, share = ratio, format_share(before, plain.engine.stats())
            most, accepted = ceiling(plain, options.dtype, options.repetitions)
            console.print(f"if the {accepted:.0%} that can be guessed cost as a prompt's: {most:.2f} times at most")
            fine &= share < MOST_FORMAT_SHARE
            console.print(drafters(guessing.engine.stats()))
    console.print(table)
    if share is not None:
        console.print(f"formats take {100 * share:.1f} % of step time")
    print(f"speculation on w3 at 64 sequences: {gain:.2f} times the rows per second" if gain else "w2 alone measured")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
