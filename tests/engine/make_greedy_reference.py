"""Write data/greedy_reference.json: the greedy tokens of transformers in fp32, with which test_greedy_reference.py
compares the engine.

    pip install accelerate  # transformers wants it for GGUF files; nothing else here does
    python tests/engine/make_greedy_reference.py SmolLM2-135M-Instruct.Q4_1.gguf

The weights are those of the GGUF file, dequantised by transformers. Prompts run one by one, without padding, and
do not stop at the end-of-sequence token. `gaps` are the distances between the two best logits of every step, in
units of 1e-6: where one is below 1e-4, rounding alone may decide.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

DATA = Path(__file__).parent / "data"
NUM_TOKENS = 24


def complete(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], list[int]]:
    """Greedy tokens and gaps."""
    tokens, gaps = [], []
    step = model(torch.tensor([prompt]), use_cache=True)
    for _ in range(NUM_TOKENS):
        (best, second), (token, _) = (part.tolist() for part in step.logits[0, -1].topk(2))
        tokens.append(token)
        gaps.append(min(round((best - second) * 1e6), 999_999))
        step = model(torch.tensor([[token]]), past_key_values=step.past_key_values, use_cache=True)
    return tokens, gaps


@torch.inference_mode()
def main(gguf: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
    prompts: dict[str, list[int]] = json.loads((DATA / "greedy_prompts.json").read_text())["prompts"]
    lines = []
    for name, prompt in prompts.items():
        tokens, gaps = complete(model, prompt)
        lines.append(f'"{name}": ' + json.dumps({"tokens": tokens, "gaps": gaps}, separators=(",", ":")))
    (DATA / "greedy_reference.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
