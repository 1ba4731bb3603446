"""The engine end to end: against the roofline, against transformers, with speculation, with other formats."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from engine import Engine, Output, Request, SamplingParams
from engine.models.llama import Llama
from tests.bench.gpu_stages.shapes import Place, median, roofline, shape, tokens

TARGET = 0.6  # of the roofline
FP8_TARGET = 1.3  # times bf16


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
        if case == "512/128" and not place.reduced:
            line["idle share"] = idle_share(engine, wanted[:batch], 50)
        yield line
        engine.close()


def engine_8b(place: Place) -> Iterator[dict[str, Any]]:
    yield from workloads(place, "8b")


def engine_1b(place: Place) -> Iterator[dict[str, Any]]:
    yield from workloads(place, "1b")


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
    """transformers' static batches with the very same weights. Its `generate_batch` builds dense masks where flash-attn
    is not installed, so it is not the stronger of the two."""
    if importlib.util.find_spec("transformers") is None:
        yield {"what": "transformers", "missing": True}
        return
    import transformers

    model = place.model("8b")
    sizes = (4, 20, 4) if place.reduced else (256, 512, 128)
    wanted = requests(*sizes, model.config.vocab_size)
    engine = place.engine(model)
    timed(engine, wanted[: max(len(wanted) // 8, 1)])
    own, outputs = timed(engine, wanted)
    engine.close()
    other = _same_model(model, transformers).to(place.device, place.dtype).eval()
    ids = torch.tensor([request.prompt for request in wanted], device=place.device)
    options = {"do_sample": False, "min_new_tokens": sizes[2], "max_new_tokens": sizes[2], "pad_token_id": 0}
    start, made = time.perf_counter(), []
    batch = 4 if place.reduced else 128
    with torch.no_grad():
        for first in range(0, len(ids), batch):
            part = ids[first : first + batch]
            made += other.generate(part, attention_mask=torch.ones_like(part), **options)[:, sizes[1] :].tolist()
    rate = sizes[0] * sizes[2] / (time.perf_counter() - start)
    equal = [_agreed(outputs[i].tokens, made[i]) for i in range(min(16, len(made)))]
    yield {
        "what": f"transformers generate, static batches of {batch}, {sizes[1]}/{sizes[2]}",
        "tokens/s": rate, "ratio": own / rate, "tokens alike before the first difference": equal,
    }  # fmt: skip


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
