"""RooflineCost: seconds from shapes and rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidRequest, OutOfCache
from engine.simulation import SimulatedRequest, Work, simulate
from engine.simulation.architecture import ARCHITECTURES, Architecture
from engine.simulation.devices import DeviceProfile
from engine.simulation.roofline import RooflineCost

H200 = DeviceProfile.named("h200")
LLAMA_8B = Architecture.named("llama-3-8b")
COST = RooflineCost(LLAMA_8B, H200)
DECODE = Work(512, 512, 512 * 576, 512 * 576, 512)


def test_weights_are_those_of_the_published_models() -> None:
    """In 2-byte numbers: 8.03, 70.55, 7.62 and 1.24 billion parameters, norms and biases aside."""
    sizes = {name: ARCHITECTURES[name].weight_bytes("bf16") / 2e9 for name in ARCHITECTURES}
    assert sizes["llama-3-8b"] == pytest.approx(8.03, abs=0.01)
    assert sizes["llama-3-70b"] == pytest.approx(70.55, abs=0.01)
    assert sizes["qwen2.5-7b"] == pytest.approx(7.62, abs=0.01)
    assert sizes["llama-3.2-1b"] == pytest.approx(1.236, abs=0.001)


def test_keys_and_values_per_token() -> None:
    assert LLAMA_8B.kv_bytes_per_token("bf16") == 131_072
    assert LLAMA_8B.kv_bytes_per_token("fp8") == 65_536
    assert Architecture.named("qwen2.5-7b").kv_bytes_per_token("bf16") == 57_344


def test_a_decode_step_of_512_sequences_on_an_h200() -> None:
    """Linear layers 9.7 ms, keys and values 9.0 ms."""
    parts = COST.parts(DECODE)
    assert parts["compute"] == pytest.approx(9.73e-3, rel=1e-3)
    assert parts["KV bandwidth"] == pytest.approx(9.005e-3, rel=1e-3)
    assert COST.seconds(DECODE) == pytest.approx(18.73e-3, rel=1e-3)


def test_a_small_step_waits_for_the_weights() -> None:
    parts = COST.parts(Work(8, 8, 8 * 576, 8 * 576, 8))
    weights = 2 * (LLAMA_8B.matrix_parameters + LLAMA_8B.head_parameters)
    assert parts["weights bandwidth"] == pytest.approx(weights / 4.3e12)
    assert parts["compute"] == 0.0


def test_alike_steps_cost_their_sum() -> None:
    steps = [replace_context(DECODE, DECODE.context + 512 * i) for i in range(10)]
    together = steps[0]
    for step in steps[1:]:
        together = together.plus(step)
    assert COST.seconds(together, 10) == pytest.approx(sum(COST.seconds(step) for step in steps))


def replace_context(work: Work, context: int) -> Work:
    return work._replace(context=context, attended=context)


def test_efficiency_divides_and_tensor_parallelism_splits() -> None:
    assert replace(COST, efficiency=0.5).seconds(DECODE) == pytest.approx(2 * COST.seconds(DECODE))
    parts, split = COST.parts(DECODE), replace(COST, tensor_parallel=4).parts(DECODE)
    assert split["compute"] == pytest.approx(parts["compute"] / 4)
    assert split["KV bandwidth"] == pytest.approx(parts["KV bandwidth"] / 4)
    assert split["links"] == pytest.approx(1.5 * 2 * 32 * 512 * 4096 * 2 / 450e9)


def test_the_host_hides_behind_one_device_and_adds_to_several() -> None:
    small = replace(COST, architecture=replace(LLAMA_8B, num_layers=1, vocab_size=1))
    work = Work(1024, 1024, 1024, 1024, 1024)
    assert small.seconds(work) == pytest.approx(1024 * 0.8e-6)
    parts = replace(small, tensor_parallel=2).parts(work)
    assert replace(small, tensor_parallel=2).seconds(work) == pytest.approx(sum(parts.values()))


def test_throughput_agrees_with_arithmetic_on_paper() -> None:
    """512 tokens in and 128 out, 512 at a time: prefill 9.1 ms a request, decode 18.7 ms a step, so 9,270 tokens/s."""
    config = EngineConfig(max_sequences=512, token_budget=8192, num_blocks=512 * 41)
    requests = (SimulatedRequest.of_lengths(number, 512, 128) for number in range(1024))
    done = simulate(requests, config, COST)
    assert done.output_tokens / done.seconds == pytest.approx(9270, rel=0.03)


def test_the_cache_takes_what_is_left() -> None:
    config = EngineConfig(max_sequences=512, token_budget=8192)
    step = 8192 * (6 * 4096 + 2 * 14336) * 2 + 512 * 128256 * 4
    left = 0.9 * 141e9 - LLAMA_8B.weight_bytes("bf16") - step
    assert COST.num_blocks(config) == int(left // (16 * 131_072))
    large = RooflineCost(Architecture.named("llama-3-70b"), H200)
    with pytest.raises(OutOfCache, match=r"take 143\.1 GB of each device, of 126\.9"):
        large.num_blocks(config)
    assert replace(large, tensor_parallel=2).num_blocks(config) > 0


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"model='gpt'.*llama-3-8b"):
        Architecture.named("gpt")
    with pytest.raises(InvalidRequest, match=r"device='tpu'.*a100, h100, h200"):
        DeviceProfile.named("tpu")
    with pytest.raises(InvalidRequest, match="dtype='fp8': a100"):
        RooflineCost(LLAMA_8B, DeviceProfile.named("a100"), dtype="fp8")
    with pytest.raises(InvalidRequest, match="tensor_parallel=3: does not divide 8 KV heads"):
        RooflineCost(LLAMA_8B, H200, tensor_parallel=3)
    with pytest.raises(InvalidRequest, match="efficiency"):
        RooflineCost(LLAMA_8B, H200, efficiency=0)
    with pytest.raises(InvalidRequest, match="dtype='int2_weight_only': must be one of"):
        RooflineCost(LLAMA_8B, H200, dtype="int2_weight_only")
    with pytest.raises(InvalidRequest, match="kv_dtype='int8_weight_only': must be one of fp32, bf16, int8, fp8"):
        RooflineCost(LLAMA_8B, H200, kv_dtype="int8_weight_only")
