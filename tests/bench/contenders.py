"""Engines to compare, each a process of its own that loads its model once and then runs workloads on demand.

    python -m tests.bench.contenders KIND --model PATH [--dtype D] …     (with the engine's own Python)

Reads one JSON line per run from standard input, {"workload": "w1", "salt": 3, "limit": null}, and answers with one,
{"rows": …, "tokens": …, "valid": …, "ids": the outputs' token ids}. The parent takes the time. Of this repository only
workloads.py is imported, so that any environment can run it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import workloads
from workloads import Item

Answer = tuple[list[int], str]  # token ids, text
Run = Callable[[list[Item]], list[Answer]]  # called once per repetition
EOS = 2


def nightmill(options: argparse.Namespace) -> Run:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from engine import EngineConfig, Format, Request, SamplingParams, load

    config = EngineConfig(dtype=options.dtype, max_sequences=options.sequences, cache_bytes=options.cache_bytes)
    loaded = load(Path(options.model), config)
    groups = count()  # a repetition must not draft from the answers of an earlier one

    def run(items: list[Item]) -> list[Answer]:
        group = next(groups)
        requests = (
            Request(
                number,
                item.prompt_ids,
                SamplingParams(max_tokens=item.max_tokens, ignore_eos=item.ignore_eos),
                format=Format("json_schema", json.dumps(item.schema)) if item.schema else None,
                group=group,
            )
            for number, item in enumerate(items)
        )
        outputs = {output.id: output for output in loaded.engine.generate(requests)}
        ordered = [outputs[number] for number in range(len(items))]
        return [(list(output.tokens), loaded.tokenizer.decode(output.tokens)) for output in ordered]

    return run


def openvino(options: argparse.Namespace) -> Run:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = options.sequences
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties = {"INFERENCE_NUM_THREADS": os.cpu_count(), "PERFORMANCE_HINT": "LATENCY"}
    pipeline = genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
    tokenizer = pipeline.get_tokenizer()

    def config(item: Item) -> Any:
        made = genai.GenerationConfig()
        made.max_new_tokens, made.do_sample, made.ignore_eos = item.max_tokens, False, item.ignore_eos
        made.apply_chat_template = False
        if not item.ignore_eos:
            made.stop_token_ids, made.eos_token_id = {EOS}, EOS
        if item.schema:
            structured = genai.StructuredOutputConfig()
            structured.json_schema = json.dumps(item.schema)
            made.structured_output_config = structured
        return made

    def ask(items: list[Item]) -> list[Any]:
        prompts = [ov.Tensor(np.array([item.prompt_ids], dtype=np.int64)) for item in items]
        return list(pipeline.generate(prompts, [config(item) for item in items]))

    def run(items: list[Item]) -> list[Answer]:
        # It shares a prefix only once that is cached, so the first request goes alone: this favours it.
        answers = ask(items[:1]) + ask(items[1:])
        tokens = [answer.m_generation_ids[0] for answer in answers]
        return [([int(token) for token in ids], tokenizer.decode(ids)) for ids in tokens]

    return run


def vllm(options: argparse.Namespace) -> Run:
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    model = LLM(
        model=options.model,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=options.sequences,
        max_num_batched_tokens=2048,
        block_size=32,
        enable_prefix_caching=True,
        disable_log_stats=True,
        seed=0,
    )

    def sampling(item: Item) -> Any:
        more = {"structured_outputs": StructuredOutputsParams(json=item.schema)} if item.schema else {}
        return SamplingParams(temperature=0, max_tokens=item.max_tokens, ignore_eos=item.ignore_eos, **more)

    def run(items: list[Item]) -> list[Answer]:
        prompts = [{"prompt_token_ids": list(item.prompt_ids)} for item in items]
        outputs = model.generate(prompts, [sampling(item) for item in items], use_tqdm=False)
        return [(list(output.outputs[0].token_ids), output.outputs[0].text) for output in outputs]

    return run


def transformers(options: argparse.Namespace) -> Run:
    """One prompt at a time, as a first script does it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(os.cpu_count() or 1)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()

    def run(items: list[Item]) -> list[Answer]:
        answers = []
        for item in items:
            length = {"min_new_tokens": item.max_tokens} if item.ignore_eos else {}
            ids = model.generate(
                input_ids=torch.tensor([item.prompt_ids]),
                attention_mask=torch.ones(1, len(item.prompt_ids), dtype=torch.long),
                max_new_tokens=item.max_tokens,
                do_sample=False,
                eos_token_id=None if item.ignore_eos else EOS,
                pad_token_id=EOS,
                **length,
            )[0, len(item.prompt_ids) :].tolist()
            answers.append((ids, tokenizer.decode(ids, skip_special_tokens=True)))
        return answers

    return run


KINDS = {"nightmill": nightmill, "openvino": openvino, "vllm": vllm, "transformers": transformers}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--cache-bytes", type=int, default=512 << 20)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")  # libraries print to standard output; keep it for the answers alone
    os.dup2(2, 1)
    run = KINDS[options.kind](options)
    run(workloads.salted(workloads.load("w1"), 900)[:8])  # warm
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        items = workloads.salted(workloads.load(order["workload"]), order["salt"])[: order["limit"]]
        got = run(items)
        ok = sum(workloads.valid(item, text) for item, (_, text) in zip(items, got, strict=True))
        ids = [tokens for tokens, _ in got]
        report = {"rows": len(items), "tokens": sum(map(len, ids)), "valid": ok, "ids": ids}
        print(json.dumps(report), file=answers, flush=True)


if __name__ == "__main__":
    main()
