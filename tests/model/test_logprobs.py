"""The one shift: index t describes token t."""

import pytest
import torch

from model.hybrid import build_model
from model.logprobs import sequence_logprobs
from model.mixer import PackedMixer
from model.presets import tiny

BOUNDS = torch.tensor([0, 9, 10, 30])


@pytest.fixture(scope="module")
def policy():
    return build_model(tiny(), seed=0)


def test_each_token_is_scored_by_the_state_before_it(policy):
    tokens = torch.randint(0, 1024, (30,))
    hidden = policy.model.run(tokens, PackedMixer(BOUNDS)).hidden
    logp = (policy.lm_head(hidden) / 0.8).log_softmax(dim=-1)
    logprobs, entropy = sequence_logprobs(policy, tokens, BOUNDS, temperature=0.8)
    for t in range(30):
        if t in (0, 9, 10):
            assert logprobs[t] == 0
            assert entropy[t] == 0
        else:
            torch.testing.assert_close(logprobs[t], logp[t - 1, tokens[t]])
            torch.testing.assert_close(entropy[t], -(logp[t - 1].exp() * logp[t - 1]).sum())


def test_tokens_that_are_not_wanted_score_zero_and_the_others_the_same(policy):
    tokens = torch.randint(0, 1024, (30,))
    scored = torch.arange(30) % 3 == 0
    before = scored.clone()
    some, _ = sequence_logprobs(policy, tokens, BOUNDS, scored=scored)
    every, _ = sequence_logprobs(policy, tokens, BOUNDS)
    assert torch.equal(scored, before)
    torch.testing.assert_close(some, every * scored)


def test_gradients_flow_into_head_and_embedding(policy):
    policy.zero_grad()
    logprobs, entropy = sequence_logprobs(policy, torch.randint(0, 1024, (30,)), BOUNDS)
    (logprobs.sum() + entropy.sum()).backward()
    assert policy.lm_head.weight.grad.any()
    assert policy.model.embed_tokens.weight.grad.any()


def test_where_nothing_is_wanted_everything_is_zero_and_gradients_flow(policy):
    policy.zero_grad()
    tokens = torch.randint(0, 1024, (3,))
    logprobs, entropy = sequence_logprobs(policy, tokens, torch.tensor([0, 1, 2, 3]))
    assert logprobs.tolist() == entropy.tolist() == [0.0] * 3
    (logprobs.sum() + entropy.sum()).backward()
    assert not policy.model.embed_tokens.weight.grad.any()
