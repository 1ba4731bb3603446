"""The engine end to end: against the roofline, against transformers, with speculation, with other formats."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch

from engine import Engine, Output, Request, SamplingParams, computation, gpu_runner
from engine.models.llama import Llama
from tests.bench.gpu_stages.shapes import Place, median, roofline, shape, tokens

TARGET = 0.6  # of the roofline
FP8_TARGET = 1.3  # times bf16
STATIC_TARGET = 3.0  # times transformers' static batches
IDLE_TARGET = 0.05  # of the wall time


def requests(
    count: int, prompt: int, output: int, vocab: int, *, shared: int = 0, ragged: bool = False
) -> list[Request]:
    """`shared` tokens begin every prompt; `ragged`: lengths are spread lognormally around the given ones."""
    generator = np.random.default_rng(0)
    spread = np.exp(generator.normal(0, 0.5, (count, 2))) if ragged else np.ones((count, 2))
    beginning = tokens(shared, vocab, 10**6)
    made = []
    for i, (longer_prompt, longer_output) in enumerate(spread):
        own = max(int(prompt * longer_prompt) - shared, 1)
        length = max(int(output * longer_output), 2)
        made.append(Request(i, beginning + tokens(own, vocab, i), SamplingParams(max_tokens=length)))
    return made


def timed(engine: Engine, wanted: Sequence[Request]) -> tuple[float, dict[object, Output]]:
    """Output tokens per second, and the outputs."""
    start = time.perf_counter()
    outputs = {output.id: output for output in engine.generate(wanted)}
    seconds = time.perf_counter() - start
    assert all(len(outputs[each.id].tokens) == each.sampling.max_tokens for each in wanted)
    return sum(len(output.tokens) for output in outputs.values()) / seconds, outputs


def idle_share(engine: Engine, wanted: Sequence[Request], steps: int) -> float:
    """The share of some steps' wall time in which no kernel ran on the device."""
    for request in wanted:
        engine.add(request)
    for _ in range(steps):
        engine.step()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        start = time.perf_counter()
        for _ in range(steps):
            engine.step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
    for request in wanted:
        engine.abort(request.id)
    engine.step()
    return 1 - busy / wall


def workloads(place: Place, name: str) -> Iterator[dict[str, Any]]:
    """Each workload once after a short warm-up; the first one twice, to show the spread."""
    model = place.model(name)
    vocab, batch = model.config.vocab_size, 4 if place.reduced else 512
    cases = {"512/128": (1024, 512, 128, {}), "1024/256": (512, 1024, 256, {})}
    if name == "8b":
        cases["512/128, 384 shared"] = (1024, 512, 128, {"shared": 384})
        cases["ragged 512/128"] = (1024, 512, 128, {"ragged": True})
    for case, (count, prompt, output, options) in cases.items():
        if place.reduced:
            count, prompt, output = 5, 20, 4
            options = {key: 8 if key == "shared" else value for key, value in options.items()}
        engine = place.engine(model, prefix_caching="shared" in options)
        wanted = requests(count, prompt, output, vocab, **options)  # type: ignore[arg-type]
        timed(engine, wanted[: max(batch // 8, 1)])
        rates = [timed(engine, wanted)[0] for _ in range(2 if case == "512/128" and not place.reduced else 1)]
        bound = roofline(model.config, prompt, output, batch)
        line = {"what": f"{name} {case}", "tokens/s": median(rates), "runs": rates}
        if not options:
            line |= {"of the roofline": median(rates) / bound, "passed": median(rates) / bound >= TARGET}
        yield line
        if case == "512/128" and not place.reduced:
            idle = idle_share(engine, wanted[:batch], 50)
            yield {"what": f"{name} {case}, 50 steps", "idle share": idle, "passed": idle < IDLE_TARGET}
        engine.close()


def engine_8b(place: Place) -> Iterator[dict[str, Any]]:
    yield from workloads(place, "8b")


def engine_1b(place: Place) -> Iterator[dict[str, Any]]:
    """Host work shows here. The last lines: without graphs, and without going a step ahead of the host."""
    yield from workloads(place, "1b")
    model = place.model("1b")
    wanted = requests(*((4, 20, 4) if place.reduced else (512, 512, 128)), model.config.vocab_size)
    rate, _ = _own(place, model, wanted)
    for name, module, changed in (
        ("without graphs", gpu_runner, {"SIZES": (0,)}),
        ("each step read before the next", computation, {"chooser_of": lambda runner: None}),
    ):
        with mock.patch.multiple(module, **changed):
            slower, outputs = _own(place, model, wanted)
        yield {"what": f"1b 512/128, {name}", "tokens/s": slower, "ratio": slower / rate, "outputs": len(outputs)}


def formats(place: Place) -> Iterator[dict[str, Any]]:
    """Weights and activations in fp8, keys and values in fp8, both, beside bf16."""
    sizes = (5, 20, 4) if place.reduced else (512, 512, 128)
    wanted = requests(*sizes, shape("tiny" if place.reduced else "8b").vocab_size)
    plain = 0.0
    for fp8 in (False, True):
        model = place.model("8b", fp8=fp8)
        for kind in ("auto", "fp8"):
            engine = place.engine(model, kv_dtype=kind)
            timed(engine, wanted[: max(len(wanted) // 8, 1)])
            rate, _ = timed(engine, wanted)
            engine.close()
            plain = plain or rate
            names = f"weights {'fp8' if fp8 else 'bf16'}, keys and values {kind}"
            line = {"what": f"8b 512/128, {names}", "tokens/s": rate, "ratio": rate / plain}
            yield line | ({"passed": rate / plain >= FP8_TARGET} if fp8 else {})


def baselines(place: Place) -> Iterator[dict[str, Any]]:
    """transformers with the very same weights: static batches of equal and of ragged lengths, the latter as they come
    and sorted, and its own continuous batching. That builds dense masks where flash-attn is not installed, and copies
    keys and values for every query head, so it is not the strongest there is."""
    if importlib.util.find_spec("transformers") is None:
        yield {"what": "transformers", "missing": True}
        return
    import transformers

    model = place.model("8b")
    other = _same_model(model, transformers).to(place.device, place.dtype).eval()
    vocab, batch = model.config.vocab_size, 2 if place.reduced else 64
    sizes = (4, 20, 4) if place.reduced else (256, 512, 128)
    wanted = requests(*sizes, vocab)
    own, outputs = _own(place, model, wanted)
    rate, made = _static(other, wanted, 2 * batch, place)
    alike = [_agreed(outputs[i].tokens, made[i]) for i in range(min(16, len(made)))]
    line = {"what": f"generate, static batches of {2 * batch}, {sizes[1]}/{sizes[2]}", "tokens/s": rate}
    line |= {"ratio": own / rate, "tokens alike before the first difference": alike}
    yield line | ({} if place.reduced else {"passed": own / rate >= STATIC_TARGET})
    ragged = requests(sizes[0] // 2, *sizes[1:], vocab, ragged=True)
    own, _ = _own(place, model, ragged)
    for name, order in (
        ("as they come", ragged),
        ("sorted", sorted(ragged, key=lambda each: each.sampling.max_tokens)),
    ):
        rate, _ = _static(other, order, batch, place)
        yield {"what": f"generate, static batches of {batch}, ragged, {name}", "tokens/s": rate, "ratio": own / rate}
    rate = _continuous(other, wanted[:batch], transformers)
    own, _ = _own(place, model, wanted[:batch])
    yield {"what": f"generate_batch, {batch} requests", "tokens/s": rate, "ratio": own / rate}


def _own(place: Place, model: Llama, wanted: Sequence[Request]) -> tuple[float, dict[object, Output]]:
    """Our output tokens per second, after a warm-up."""
    engine = place.engine(model)
    timed(engine, wanted[: max(len(wanted) // 8, 1)])
    found = timed(engine, wanted)
    engine.close()
    return found


def _static(other: Any, wanted: Sequence[Request], batch: int, place: Place) -> tuple[float, list[list[int]]]:
    """`generate` on batches, padded at the left, each until its longest output ends: the rate of what was asked for."""
    start, made = time.perf_counter(), []
    with torch.no_grad():
        for first in range(0, len(wanted), batch):
            part = wanted[first : first + batch]
            width = max(len(request.prompt) for request in part)
            length = max(request.sampling.max_tokens for request in part)
            ids = torch.tensor([[0] * (width - len(each.prompt)) + list(each.prompt) for each in part])
            held = torch.tensor([[0] * (width - len(each.prompt)) + [1] * len(each.prompt) for each in part])
            options = {"do_sample": False, "min_new_tokens": length, "max_new_tokens": length, "pad_token_id": 0}
            found = other.generate(ids.to(place.device), attention_mask=held.to(place.device), **options)
            made += found[:, width:].tolist()
    return sum(request.sampling.max_tokens for request in wanted) / (time.perf_counter() - start), made


def _continuous(other: Any, wanted: Sequence[Request], transformers: Any) -> float:
    """`generate_batch`, its output tokens per second."""
    length = wanted[0].sampling.max_tokens
    settings = transformers.GenerationConfig(max_new_tokens=length, do_sample=False, eos_token_id=-1, pad_token_id=0)
    start = time.perf_counter()
    with torch.no_grad():
        found = other.generate_batch([list(request.prompt) for request in wanted], settings, progress_bar=False)
    count = sum(len(each.generated_tokens) for each in found.values())
    assert count == length * len(wanted), "an output ended early"
    return count / (time.perf_counter() - start)


def _agreed(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))


def _same_model(model: Llama, transformers: Any) -> Any:
    """transformers' Llama with the very weights."""
    config = model.config
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_eps,
            rope_theta=config.rope_theta,
            max_position_embeddings=config.max_position,
            tie_word_embeddings=config.tie_embeddings,
            dtype=model.dtype,
        )
    )
    views = model.weights.by_name(config)  # type: ignore[misc]
    made.load_state_dict(views, strict=not config.tie_embeddings, assign=True)
    return made
