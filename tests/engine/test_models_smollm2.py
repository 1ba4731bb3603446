"""The demo model: its tokenizer against known ids, its logits against transformers with the file's weights."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.models import load_model
from engine.tokenizer import Tokenizer, load_tokenizer
from tests.engine.tiny_models import Paged
from tests.engine.tiny_tokenizers import TORTURE

pytestmark = pytest.mark.model
PROMPTS = [json.loads(line) for line in (Path(__file__).parent / "data/smollm2_prompts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return load_tokenizer(demo_model)


@pytest.fixture(scope="module")
def reference(demo_model: Path):
    """transformers' vocabulary of the file, with the pre-tokenizer of SmolLM2's own tokenizer.json."""
    loaded = transformers.AutoTokenizer.from_pretrained(demo_model.parent, gguf_file=demo_model.name)
    tokenizer = loaded.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.encode_special_tokens = True
    return tokenizer


def test_sizes(tokenizer):
    assert tokenizer.vocab_size == 49152
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}
    assert sum(not part for part in tokenizer.token_bytes) == 17  # the control tokens


@pytest.mark.parametrize("i_prompt", range(len(PROMPTS)))
def test_prompts(i_prompt, tokenizer):
    assert tokenizer.encode_chat(PROMPTS[i_prompt]["messages"]) == PROMPTS[i_prompt]["ids"]


@pytest.mark.parametrize("name", TORTURE)
def test_torture(name, tokenizer, reference):
    text = TORTURE[name]
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert all(i >= 17 for i in ids)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()


def transformers_model(path: Path):
    """SmolLM2-135M in transformers, filled from the file by the gguf package's own reader."""
    reader = gguf.GGUFReader(path)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):  # random numbers for every weight would take longer than the test
        model = transformers.LlamaForCausalLM(config).eval()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    state = {}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name in model.state_dict():
        if name == "lm_head.weight":
            continue
        tensor = tensors[names.get_name(name, try_suffixes=(".weight",))]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for part, heads in (("q_proj", 9), ("k_proj", 3)):
            if part in name:
                values = values.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(values.shape)
        state[name] = torch.from_numpy(values.copy())
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    return model


def test_logits_as_transformers_computes_them(demo_model):
    """A prompt in two chunks and four greedy tokens."""
    tokens = PROMPTS[0]["ids"][:110]
    model = load_model(demo_model)
    run = Paged(model, [[*tokens, 0, 0, 0, 0]])
    run.step({0: 90})
    run.step({0: len(tokens) - 90})
    for place in range(4):
        run.sequences[0][len(tokens) + place] = int(run.result(0)[-1].argmax())
        run.step({0: 1})
    with torch.no_grad():
        expected = transformers_model(demo_model)(torch.tensor(run.sequences)).logits[0]
    torch.testing.assert_close(run.result(0), expected, atol=1e-3, rtol=0)
