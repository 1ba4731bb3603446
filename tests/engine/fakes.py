"""A model of a few lines whose next token depends on the content of the cache, so that a wrong slot shows."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models import ModelConfig

VOCAB = 97
MODULUS = 1_000_003  # exact in fp32, and its products in int64


def config(vocab_size: int = VOCAB, max_position: int = 4096) -> ModelConfig:
    return ModelConfig(
        architecture="fake",
        vocab_size=vocab_size,
        hidden_size=1,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        intermediate_size=1,
        max_position=max_position,
        rms_eps=1e-5,
        rope_theta=10_000.0,
    )


def fold(state: int, token: int) -> int:
    return (state * 31 + token + 1) % MODULUS


class HashModel:
    """Keeps (token, position) as a token's key. The hidden state of position p is a hash of the tokens 0 … p as they
    are read back through the block table; logits are a fixed function of it. Asserts that every position read is the
    one that belongs there."""

    def __init__(self, vocab_size: int = VOCAB, max_position: int = 4096) -> None:
        self.config = config(vocab_size, max_position)
        self.batches: list[int] = []  # tokens of each step

    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        self.batches.append(inputs.num_tokens)
        keys, _ = cache.layer(0)
        size = cache.block_size
        assert len(set(inputs.slots.tolist())) == inputs.num_tokens, "two tokens are written to one slot"
        keys[inputs.slots // size, 0, inputs.slots % size] = torch.stack(
            (inputs.token_ids, inputs.positions), -1
        ).float()
        hidden: list[int] = []
        starts = inputs.query_starts.tolist()
        for i_slice, context in enumerate(inputs.context_lengths.tolist()):
            blocks = inputs.block_tables[i_slice].long()
            read = keys[blocks, 0].flatten(0, 1)[:context].long()
            assert read[:, 1].tolist() == list(range(context)), "the cache holds another position there"
            state, states = 0, []
            for token in read[:, 0].tolist():
                state = fold(state, token)
                states.append(state)
            hidden += states[context - (starts[i_slice + 1] - starts[i_slice]) :]
        return torch.tensor(hidden, dtype=torch.float32)[inputs.logit_rows, None]

    def logits(self, hidden: Tensor) -> Tensor:
        return logits_of(hidden[:, 0].long(), self.config.vocab_size)


def logits_of(states: Tensor, vocab_size: int = VOCAB) -> Tensor:
    """Different for every state and token, in [-4, 4], the same whatever else is in the batch."""
    mixed = (
        states[:, None] * 7919 + torch.arange(vocab_size) * 104_729 + states[:, None] * torch.arange(vocab_size)
    ) % 8191
    return mixed.float() / 1024 - 4


def state_of(tokens: list[int] | tuple[int, ...]) -> int:
    state = 0
    for token in tokens:
        state = fold(state, token)
    return state


def next_logits(tokens: list[int] | tuple[int, ...], vocab_size: int = VOCAB) -> Tensor:
    """The logits [vocab] after these tokens, computed without any engine."""
    return logits_of(torch.tensor([state_of(tokens)]), vocab_size)[0]


def continuation(prompt: tuple[int, ...], num_tokens: int, vocab_size: int = VOCAB) -> tuple[int, ...]:
    """The greedy continuation, computed without any engine."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(next_logits(tokens, vocab_size).argmax()))
    return tuple(tokens[len(prompt) :])
