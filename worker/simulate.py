"""`python -m worker.simulate`: how long a job would take, on this machine or on GPUs, as one JSON object. `nightmill
simulate` asks it. Where it cannot say, it writes one line to standard error; it ends with status 2 if an option is
wrong and 4 if the model cannot be used."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from db import model_files
from db.errors import DomainError, ModelMissing
from db.settings import Settings
from engine import EngineConfig, EngineError, InvalidRequest, ModelError
from engine.cache import KVCache
from engine.models.load import read_config
from engine.simulation import Architecture, DeviceProfile, RooflineCost
from engine.simulation.architecture import ARCHITECTURES
from engine.simulation.devices import DEVICES
from engine.simulation.measure import measure_steps
from engine.simulation.question import Answer, PartedCost, Question, answer
from engine.simulation.shared import Pace, Profile, SharedEngine
from worker import fleet_jobs
from worker.elsewhere import BUDGET, SEQUENCES, gpu_config
from worker.fleet import Fleet
from worker.lengths import lengths
from worker.models import engine_config, load_model

HERE = "here"
REFUSED, UNAVAILABLE = 2, 4  # exit statuses, as nightmill's


@dataclass(frozen=True, slots=True)
class Setting:
    """What runs the rows: an engine's configuration, its cost, and the memory of a token's keys and values."""

    config: EngineConfig
    cost: PartedCost
    kv_bytes_per_token: float
    weight_bytes: float
    dtype: str
    error: float | None = None  # of measured step costs, in the mean


def here(options: argparse.Namespace, settings: Settings) -> Setting:
    """The model on this machine: its steps are measured, for half a minute or so on two cores."""
    if options.model in ARCHITECTURES and options.model not in model_files.CATALOG:
        raise InvalidRequest("device", HERE, f"of {options.model} only the shape is known: take {', '.join(DEVICES)}")
    names = ("dtype", "kv_dtype", "max_sequences", "token_budget", "prefix_caching")
    given = {f"engine_{name}": value for name in names if (value := getattr(options, name)) is not None}
    own = settings.model_copy(update={"engine_speculation": False, **given})
    config = engine_config(own)
    loaded = load_model(options.model, own)
    cost = measure_steps(loaded.engine, config).cost()
    shape = read_config(model_files.find(options.model, own))
    per_block = KVCache.fit(shape, config).bytes_per_block
    config = replace(config, num_blocks=loaded.engine.stats().blocks_total, max_model_len=loaded.engine.max_model_len)
    weights = Architecture.of(shape).weight_bytes("int8" if config.dtype == "auto" else config.dtype)
    return Setting(config, cost, per_block / config.block_size, weights, own.engine_dtype, cost.error)


def on_gpus(options: argparse.Namespace, settings: Settings) -> Setting:
    """A profile's devices."""
    dtype = options.dtype if options.dtype not in (None, "auto") else "bf16"
    kv_dtype = options.kv_dtype
    if kv_dtype in (None, "auto"):
        kv_dtype = "fp32" if dtype == "fp32" else "bf16"
    shape = architecture(options.model, settings)
    profile = DeviceProfile.named(options.device)
    cost = RooflineCost(shape, profile, dtype, kv_dtype, options.tensor_parallel, options.efficiency)
    config = gpu_config(
        cost,
        settings,
        max_sequences=options.max_sequences or SEQUENCES,
        token_budget=options.token_budget or BUDGET,
        prefix_caching=options.prefix_caching,
    )
    return Setting(config, cost, shape.kv_bytes_per_token(kv_dtype), shape.weight_bytes(dtype), dtype)


def architecture(model: str, settings: Settings) -> Architecture:
    """Of a public model by name, or of one that is here. Raises InvalidRequest, ModelMissing, ModelError."""
    if model in ARCHITECTURES:
        return Architecture.named(model)
    try:
        return Architecture.of(read_config(model_files.find(model, settings)))
    except ModelMissing as error:
        raise ModelMissing(model, f"{error.reason}; shapes known by name: {', '.join(ARCHITECTURES)}") from error


def simulated(options: argparse.Namespace, settings: Settings) -> dict[str, object]:
    """What is printed."""
    for name in ("count", "tensor_parallel"):
        if getattr(options, name) < 1:
            raise InvalidRequest(name, getattr(options, name), "must be at least 1")
    if options.count % options.tensor_parallel:
        raise InvalidRequest("count", options.count, f"is no multiple of tensor_parallel={options.tensor_parallel}")
    if options.device == HERE and options.tensor_parallel > 1:
        reason = f"is simulated on GPUs alone: take --device {', '.join(DEVICES)}"
        raise InvalidRequest("tensor_parallel", options.tensor_parallel, reason)
    engines = options.count // options.tensor_parallel
    if options.jobs is not None:
        return fleet(options, engines, settings)
    prompt = lengths(options.prompt_tokens, "prompt_tokens", options.model, settings)
    output = lengths(options.output_tokens, "output_tokens", options.model, settings)
    question = Question(options.rows, prompt, output, options.shared_tokens, engines)
    setting = setting_of(options, settings)
    return report(options, setting, answer(question, setting.config, setting.cost))


def setting_of(options: argparse.Namespace, settings: Settings) -> Setting:
    return here(options, settings) if options.device == HERE else on_gpus(options, settings)


def fleet(options: argparse.Namespace, workers: int, settings: Settings) -> dict[str, object]:
    """The jobs of a file on as many workers as there are copies of the model."""
    lines = fleet_jobs.read(options.jobs, settings.shard_rows)
    kinds: dict[tuple[str, str, int], int] = {}  # of rows, by what was said of them
    wanted = []
    for line in lines:
        prompt, output, shared = (
            getattr(options if getattr(line, name) is None else line, name)
            for name in ("prompt_tokens", "output_tokens", "shared_tokens")
        )
        kind = kinds.setdefault((str(prompt), str(output), shared), len(kinds))
        wanted.append(fleet_jobs.FleetJob.of(line, kind))
    profiles = [
        Profile(
            lengths(prompt, "prompt_tokens", options.model, settings),
            lengths(output, "output_tokens", options.model, settings),
            shared,
        )
        for prompt, output, shared in kinds
    ]
    setting = setting_of(options, settings)
    pace = Pace(profiles, setting.config, setting.cost)
    course = Fleet(wanted, workers, lambda: SharedEngine(pace), settings).run()
    return {
        **about(options, setting, course.seconds),
        "workers": workers,
        "threads": settings.worker_threads,
        **asdict(course),
    }


def about(options: argparse.Namespace, setting: Setting, seconds: float) -> dict[str, object]:
    """What was asked, and what so much time of the devices comes to."""
    hours = seconds / 3600 * options.count
    return {
        "model": options.model,
        "device": options.device,
        "count": options.count,
        "tensor_parallel": options.tensor_parallel,
        "dtype": setting.dtype,
        "efficiency": None if options.device == HERE else options.efficiency,
        "step_error": setting.error,
        "device_hours": hours,
        "cost": None if options.price is None else hours * options.price,
    }


def report(options: argparse.Namespace, setting: Setting, found: Answer) -> dict[str, object]:
    config = setting.config
    cache_tokens = (config.num_blocks or 0) * config.block_size
    mean = found.mean_prompt + found.mean_output
    return {
        **about(options, setting, found.seconds),
        "rows": options.rows,
        **asdict(found),
        "bound": found.bound,
        "weight_bytes": setting.weight_bytes,
        "kv_bytes_per_token": setting.kv_bytes_per_token,
        "kv_bytes_per_sequence": setting.kv_bytes_per_token * mean,
        "cache_tokens": cache_tokens,
        "sequences_that_fit": int(cache_tokens / mean),
        "max_sequences": config.max_sequences,
        "token_budget": config.token_budget,
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m worker.simulate")
    made.add_argument("--model", required=True)
    made.add_argument("--device", default=HERE)
    made.add_argument("--count", type=int, default=1)
    made.add_argument("--tensor-parallel", type=int, default=1)
    made.add_argument("--dtype")
    made.add_argument("--kv-dtype")
    of_rows = made.add_mutually_exclusive_group(required=True)
    of_rows.add_argument("--rows", type=int)
    of_rows.add_argument("--jobs", type=Path)
    made.add_argument("--prompt-tokens", default="512")
    made.add_argument("--output-tokens", default="128")
    made.add_argument("--shared-tokens", type=int, default=0)
    made.add_argument("--efficiency", type=float, default=0.6)
    made.add_argument("--price", type=float)
    made.add_argument("--max-sequences", type=int)
    made.add_argument("--token-budget", type=int)
    made.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false")
    return made


def main() -> None:
    options = parser().parse_args()
    try:
        print(json.dumps(simulated(options, Settings())))
    except (EngineError, DomainError) as error:
        print(error, file=sys.stderr)
        sys.exit(UNAVAILABLE if isinstance(error, (ModelError, ModelMissing)) else REFUSED)


if __name__ == "__main__":
    main()
