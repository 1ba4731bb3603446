"""What `nightmill simulate` found, in words: what both of its answers share, and the course of several jobs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def devices(found: dict[str, Any]) -> str:
    parallel = f", {found['tensor_parallel']} to a model" if found["tensor_parallel"] > 1 else ""
    return f"{found['model']} ({found['dtype']}) on {found['count']} x {found['device']}{parallel}"


def basis(found: dict[str, Any]) -> str:
    """What the times rest on."""
    if found["efficiency"] is None:
        return f"from steps measured just now; the prices fitted to them are {found['step_error']:.0%} off, in the mean"
    return f"at {found['efficiency']:.0%} of the roofline, which is a guess and not measured"


def cost(found: dict[str, Any]) -> str:
    return f"cost: {found['cost']:,.2f} for {found['device_hours']:,.1f} device-hours"


def lines(found: dict[str, Any]) -> list[str]:
    """One job."""
    said = [
        f"{found['rows']:,} rows of {devices(found)}: "
        f"{duration(found['seconds'])}, {found['rows_per_second']:,.2f} rows/s, "
        f"{found['prompt_tokens_per_second']:,.0f} prompt and {found['output_tokens_per_second']:,.0f} output tokens/s"
    ]
    said.append(basis(found))
    if found["efficiency"] is not None:
        said[-1] += f"; at all of it: {duration(found['full_rate_seconds'])}"
    if found["extrapolated"]:
        said.append(
            f"simulated: {found['simulated_rows']:,} rows on one engine, {duration(found['simulated_seconds'])}; "
            f"the rest at the rate of their middle, {found['steady_rows_per_second']:,.2f} rows/s on all"
        )
    if found["refused_share"]:
        said.append(f"{found['refused_share']:.1%} of rows are too long for the model or the cache, and would fail")
    if found["cost"] is not None:
        said.append(cost(found))
    kib, mib = found["kv_bytes_per_token"] / 1024, found["kv_bytes_per_sequence"] / 2**20
    said.append(
        f"memory: weights {found['weight_bytes'] / 1e9:,.2f} GB; keys and values {kib:,.1f} KiB a token, "
        f"{mib:,.1f} MiB a row; {found['sequences_that_fit']:,} such rows fit, {found['max_sequences']:,} run at most, "
        f"{found['occupancy']:.0%} of these places are taken"
    )
    spent = ", ".join(f"{name} {share:.0%}" for name, share in found["shares"].items() if share >= 0.005)
    said.append(f"prefix cache: {found['cached_share']:.0%} of prompt tokens; time: {spent}; binds: {found['bound']}")
    return said


def show(found: dict[str, Any], console: Console) -> None:
    """Jobs and tenants as tables."""
    table = Table("job", "tenant", "rows", "submitted", "waits", "ends", "rows/s")
    for job in found["jobs"]:
        times = (duration(seconds) for seconds in (job["at"], job["began"] - job["at"], job["ended"]))
        table.add_row(job["name"], job["tenant"], f"{job['rows']:,}", *times, f"{job['rows_per_second']:,.2f}")
    console.print(table)
    if found["contested_seconds"]:
        table = Table("tenant", "of the shards at work", "an equal part")
        for name, tenant in found["tenants"].items():
            table.add_row(name, f"{tenant['share']:.0%}", f"{tenant['equal']:.0%}")
        console.print(table)
    busy = found["utilisation"]
    said = [
        f"{devices(found)}, {found['workers']} workers of {found['threads']} threads: {duration(found['seconds'])}, "
        f"{found['rows_per_second']:,.2f} rows/s",
        basis(found),
        *([cost(found)] if found["cost"] is not None else []),
    ]
    if found["contested_seconds"]:
        said.append(
            f"the shares are of the {duration(found['contested_seconds'])} in which several tenants had open jobs"
        )
    said.append(
        f"workers busy {sum(busy) / len(busy):.0%} of the time, the least {min(busy):.0%}; the first had no more to do "
        f"{duration(found['tail_seconds'])} before the end"
    )
    for line in said:
        console.print(line, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """As 2 d 3 h, 3 h 20 min, 4 min 5 s or 12.3 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
