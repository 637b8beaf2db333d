"""The engine gives a token the same bits whatever shares its batch and however its past came in.

So does the learner, with and without other sequences in its pack.
"""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from rollout.config import RolloutConfig
from rollout.engine_environment import engine_environment
from rollout.invariance import Invariance, measure_invariance

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUM_TOKENS = 2048

# vLLM takes one engine per process once compiled loops ran in it.
PREFIX_CACHING = """
import json, random, sys
from vllm import LLM, ModelRegistry, SamplingParams
from model.vllm_plugin import ARCHITECTURE, register
from model.vllm_plugin.decoder import VllmDecoder

register()
ModelRegistry.register_model(ARCHITECTURE, VllmDecoder)
llm = LLM(
    model=sys.argv[1], dtype="float32", skip_tokenizer_init=True, enforce_eager=True,
    enable_prefix_caching=True, max_model_len=2048, max_num_seqs=8, block_size=32,
    max_num_batched_tokens=512, kv_cache_memory_bytes=64 << 20, disable_log_stats=True,
)
rng = random.Random(0)
prompts = [[rng.randrange(1000) for _ in range(length)] for length in (300, 1500, 1029)]

def sample(prompts):
    parameters = SamplingParams(
        temperature=1.0, seed=1, max_tokens=24, logprobs=0, detokenize=False, ignore_eos=True
    )
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], parameters, use_tqdm=False)
    return [
        [output.num_cached_tokens, list(output.outputs[0].token_ids),
         [entry[token].logprob.hex() for token, entry in
          zip(output.outputs[0].token_ids, output.outputs[0].logprobs)]]
        for output in outputs
    ]

fresh = [sample([prompt])[0] for prompt in prompts]
json.dump([fresh, sample(prompts)], open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from model.checkpoint import save
    from model.hybrid import build_model
    from model.presets import tiny

    folder = tmp_path_factory.mktemp("checkpoint")
    save(build_model(tiny(1024), seed=0), folder)
    return folder


@pytest.fixture(scope="module")
def invariance(folder) -> Invariance:
    return asyncio.run(measure_invariance(folder, NUM_TOKENS))


def test_a_conversation_is_sampled_with_the_same_bits_alone_and_among_others(invariance):
    assert invariance.in_company == NUM_TOKENS


def test_scoring_a_sequence_gives_the_bits_it_was_sampled_with(invariance):
    assert invariance.rescored == NUM_TOKENS


def test_a_long_prompt_has_the_same_bits_in_large_steps_and_in_small_ones(invariance):
    assert invariance.in_pieces == NUM_TOKENS


def test_the_forward_of_training_gives_the_bits_that_were_sampled(invariance):
    assert invariance.trained == NUM_TOKENS


def test_a_prompt_found_in_the_prefix_cache_goes_on_with_the_same_bits(folder, tmp_path):
    environment = os.environ | engine_environment(RolloutConfig())
    command = [sys.executable, "-c", PREFIX_CACHING, str(folder), str(tmp_path / "samples.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    fresh, cached = json.loads((tmp_path / "samples.json").read_text())
    assert [row[0] for row in fresh] == [0, 0, 0]
    assert all(row[0] > 0 for row in cached), "nothing was found in the cache"
    assert [row[1:] for row in fresh] == [row[1:] for row in cached]
