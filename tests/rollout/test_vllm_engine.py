"""One real engine for the whole module: sessions, agreement with the learner, publishing."""

import asyncio
from dataclasses import replace

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch

from kernels.token_logprobs.support import Support
from model import checkpoint
from model.decoder import Decoder
from model.hybrid import HybridForCausalLM, build_model
from model.logprobs import sequence_logprobs
from model.mixer import PackedMixer
from model.presets import tiny
from rollout.config import RolloutConfig
from rollout.engine import MAX_SUPPORT, EngineError, SamplingConfig
from rollout.sampling_mask import SamplingMask
from rollout.trajectory import NO_EXPERT
from rollout.vllm_engine import VllmEngine
from rollout.weight_update import PublishError, write_weights

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]

# Prompts above `max_batched_tokens` are prefilled in several steps, whatever their seed.
CONFIG = RolloutConfig(
    max_tokens=1600,
    max_sampled_tokens=800,
    max_concurrent_episodes=16,
    kv_cache_mib=64,
    max_batched_tokens=192,
)
MEAN_GAP = 1e-4
"""Largest mean difference between log-probs of engine and learner, nats."""


class Conversation:
    """A session, and what went through it."""

    def __init__(self, session):
        self.session = session
        self.tokens = []
        self.logprobs = []
        self.generations = []

    async def turn(self, new, *, max_tokens, seed):
        sampling = SamplingConfig(max_tokens=max_tokens, seed=seed)
        generation = await self.session.extend(new, sampling)
        self.tokens += new + generation.token_ids.tolist()
        self.logprobs += [0.0] * len(new) + generation.logprobs.tolist()
        self.generations.append(generation)
        return generation

    async def finish(self):
        self.report = await self.session.close()
        missing = len(self.tokens) - len(self.report.expert_ids)
        self.expert_ids = np.pad(
            self.report.expert_ids, ((0, missing), (0, 0), (0, 0)), constant_values=NO_EXPERT
        )
        return self

    @property
    def sampled(self):
        return np.array(self.logprobs) != 0.0

    def gaps_to(self, model, replay=True):
        learner = learner_logprobs(model, self.tokens, self.expert_ids if replay else None)
        return np.abs(np.array(self.logprobs) - learner)[self.sampled]


def learner_logprobs(model, tokens, expert_ids=None):
    with torch.no_grad():
        logprobs, _ = sequence_logprobs(
            model,
            torch.tensor(tokens),
            torch.tensor([0, len(tokens)]),
            expert_ids=None if expert_ids is None else torch.from_numpy(expert_ids),
        )
    return logprobs.numpy()


def random_tokens(count, seed):
    return np.random.default_rng(seed).integers(0, 1024, size=count).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> HybridForCausalLM:
    fresh = build_model(tiny(), seed=0)
    with torch.no_grad():
        fresh.lm_head.weight.mul_(10.0)  # uneven predictions
        for name, parameter in fresh.named_parameters():
            if name.endswith("res_proj.weight"):  # uneven mixtures over depth
                parameter.normal_(std=0.3)
    folder = tmp_path_factory.mktemp("checkpoint")
    checkpoint.save(fresh, folder)
    loaded = checkpoint.load(folder)
    loaded.folder = folder
    return loaded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    started = await VllmEngine.start(model.folder, CONFIG, log=log)
    processes = started.process_ids
    assert all(psutil.pid_exists(pid) for pid in processes)
    yield started
    await started.shutdown()
    assert not any(psutil.pid_exists(pid) for pid in processes)


async def open_conversation(engine, name="test"):
    return Conversation(await engine.open(name))


async def test_fifty_turns_compute_each_token_once_and_agree_with_the_learner(
    engine, model, record_property
):
    conversation = await open_conversation(engine)
    for turn in range(50):
        await conversation.turn(random_tokens(14, turn), max_tokens=10, seed=turn)
    await conversation.finish()

    length = len(conversation.tokens)
    assert length == 50 * 24
    assert conversation.report.computed_tokens / length <= 1.02
    assert conversation.report.publish_recomputed_tokens == 0
    gaps = conversation.gaps_to(model)
    record_property("logprob_gap_mean", float(gaps.mean()))
    record_property("logprob_gap_max", float(gaps.max()))
    assert len(gaps) == 500
    assert gaps.mean() <= MEAN_GAP


async def test_recorded_experts_are_those_that_the_learner_chooses(engine, model):
    conversation = await open_conversation(engine)
    for turn in range(8):
        await conversation.turn(random_tokens(60, turn), max_tokens=20, seed=turn)
    recorded = (await conversation.finish()).report.expert_ids

    decoder: Decoder = model.model
    tokens = torch.tensor(conversation.tokens)
    with torch.no_grad():
        chosen = decoder.run(tokens, PackedMixer(torch.tensor([0, len(tokens)]))).expert_ids.numpy()
    assert len(recorded) == len(tokens) - 1, "the last sampled token is never computed"
    same = np.sort(recorded, axis=-1) == np.sort(chosen[:-1], axis=-1)
    assert same.mean() > 0.999


async def test_concurrent_conversations_do_not_disturb_each_other(engine, model):
    async def play(index):
        conversation = await open_conversation(engine, f"concurrent-{index}")
        # Lengths around chunks, pages and the token budget of a step; one begins with one token.
        lengths = [1 if index == 0 else 17 * index, 1, 16, 3 + index]
        for turn, length in enumerate(lengths):
            await conversation.turn(
                random_tokens(length, 100 * index + turn), max_tokens=3 + 5 * turn, seed=turn
            )
        return await conversation.finish()

    conversations = await asyncio.gather(*(play(index) for index in range(16)))
    for conversation in conversations:
        assert conversation.gaps_to(model).mean() <= MEAN_GAP
        assert conversation.report.computed_tokens == len(conversation.tokens) - 1


async def test_the_same_seed_samples_the_same_turn_in_whatever_turn_it_is_given(engine):
    async def play(first_seed, second_seed):
        conversation = await open_conversation(engine)
        long = random_tokens(400, 7)  # takes three steps: seeds must survive the first two
        first = await conversation.turn(long, max_tokens=12, seed=first_seed)
        # From here on only the second seed and a common history matter.
        await conversation.finish()
        again = await open_conversation(engine)
        await again.turn(random_tokens(30, 8), max_tokens=1, seed=0)
        second = await again.turn([1, 2, 3], max_tokens=12, seed=second_seed)
        await again.finish()
        return first.token_ids.tolist(), second.token_ids.tolist()

    first, second = await play(5, 6)
    assert await play(5, 6) == (first, second)
    other_first, other_second = await play(15, 16)
    assert other_first != first
    assert other_second != second


async def test_a_turn_ends_after_a_stop_token_that_belongs_to_it(engine):
    conversation = await open_conversation(engine)
    free = await conversation.turn(random_tokens(20, 1), max_tokens=16, seed=1)
    assert free.finish == "length"
    stop = int(free.token_ids[4])
    first_at = free.token_ids.tolist().index(stop)
    await conversation.finish()

    session = await engine.open("stopped")
    sampling = SamplingConfig(max_tokens=16, seed=1, stop_token_ids=(stop,))
    stopped = await session.extend(random_tokens(20, 1), sampling)
    assert stopped.finish == "stop"
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: first_at + 1]
    await session.close()


async def test_log_probs_are_those_of_the_tempered_distribution(engine, model):
    session = await engine.open("tempered")
    prompt = random_tokens(12, 3)
    generation = await session.extend(prompt, SamplingConfig(temperature=0.5, max_tokens=6, seed=3))
    await session.close()
    tokens = torch.tensor(prompt + generation.token_ids.tolist())
    with torch.no_grad():
        expected, _ = sequence_logprobs(
            model, tokens, torch.tensor([0, len(tokens)]), temperature=0.5
        )
    assert np.abs(expected.numpy()[12:] - generation.logprobs).mean() <= MEAN_GAP


async def test_with_top_p_the_learner_replays_what_was_left_in_the_running(engine, model):
    session = await engine.open("nucleus")
    prompt = random_tokens(12, 3)
    sampling = SamplingConfig(temperature=0.5, top_p=0.6, max_tokens=24, seed=3)
    generation = await session.extend(prompt, sampling)
    await session.close()
    mask = generation.sampling_mask
    assert mask is not None
    assert mask.lengths.max() > 1
    assert mask.lengths.max() < MAX_SUPPORT
    mask.require(generation.token_ids)
    tokens = torch.tensor(prompt + generation.token_ids.tolist())
    bounds = torch.tensor([0, len(tokens)])
    whole = SamplingMask.join([SamplingMask.whole(len(prompt)), mask])
    support = Support(
        token_ids=torch.from_numpy(whole.token_ids).long(),
        lengths=torch.from_numpy(whole.lengths).long(),
    )
    with torch.no_grad():
        within, _ = sequence_logprobs(model, tokens, bounds, 0.5, support=support)
        without, _ = sequence_logprobs(model, tokens, bounds, 0.5)
    assert np.abs(within.numpy()[12:] - generation.logprobs).mean() <= MEAN_GAP
    # Relative to what was left, a token is likelier by the share of it: at most 1 / 0.6.
    gain = (within - without).numpy()[12:]
    assert (gain >= -MEAN_GAP).all()
    assert gain.max() <= -np.log(0.6) + MEAN_GAP
    assert gain.mean() > 0.1


async def test_scores_are_the_learners_log_probs(engine, model):
    tokens = random_tokens(300, 4)
    scores = await engine.score(tokens)
    assert scores[0] == 0.0
    assert np.abs(scores - learner_logprobs(model, tokens)).mean() <= MEAN_GAP


async def test_a_conversation_that_grows_too_long_is_refused_in_one_line(engine):
    session = await engine.open("long")
    with pytest.raises(EngineError, match=r"above rollout\.max_tokens = 1600") as caught:
        await session.extend(random_tokens(1600, 0), SamplingConfig(max_tokens=1))
    assert "\n" not in str(caught.value)
    report = await session.close()
    assert report.computed_tokens == 0
    assert await session.close() is report


async def test_a_damaged_publish_is_refused_and_changes_nothing(engine, model):
    version = engine.version
    tokens = random_tokens(40, 5)
    before = await engine.score(tokens)
    manifest = write_weights(shifted(model, 1).state_dict(), version=version + 1)
    try:
        checksums = {**manifest.checksums, "lm_head.weight": "0" * 32}
        with pytest.raises(PublishError, match=r"lm_head\.weight does not match its checksum"):
            await engine.apply(replace(manifest, checksums=checksums))
    finally:
        manifest.remove()
    assert engine.version == version
    assert np.array_equal(await engine.score(tokens), before)


def shifted(model, seed):
    """The model after an update: every weight moved a little."""
    moved = build_model(model.config.shape, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for new, old in zip(moved.parameters(), model.parameters(), strict=True):
            noise = torch.randn(old.shape, generator=generator)
            new.copy_(old + 0.05 * old.std().nan_to_num(0.0) * noise)
    return moved.eval()


async def publish(engine, model, **options):
    manifest = write_weights(model.state_dict(), version=engine.version + 1)
    try:
        receipt = await engine.apply(manifest, **options)
    finally:
        manifest.remove()
    assert receipt.version == manifest.version == engine.version
    assert receipt.checksum == manifest.checksum
    assert receipt.total_bytes == manifest.total_bytes
    return receipt


async def test_a_publish_changes_the_version_of_later_tokens_and_aborts_nothing(engine, model):
    old = engine.version
    conversations = [await open_conversation(engine, f"running-{index}") for index in range(6)]
    turns = [
        asyncio.create_task(conversation.turn(random_tokens(20, index), max_tokens=150, seed=index))
        for index, conversation in enumerate(conversations)
    ]
    await asyncio.sleep(0.7)
    updated = shifted(model, 2)
    receipt = await publish(engine, updated)
    assert receipt.recomputed_sessions == 0

    for generation in await asyncio.gather(*turns):
        assert generation.finish == "length"
        assert generation.prompt_version == old
        assert (np.diff(generation.versions) >= 0).all()
        assert set(generation.versions) == {old, old + 1}
    later = await conversations[0].turn([1, 2], max_tokens=3, seed=0)
    assert set(later.versions) == {later.prompt_version} == {old + 1}
    for conversation in conversations:
        await conversation.finish()
        assert conversation.report.computed_tokens == len(conversation.tokens) - 1
        assert conversation.report.publish_recomputed_tokens == 0

    tokens = random_tokens(200, 6)
    scores = await engine.score(tokens)
    assert np.abs(scores - learner_logprobs(updated, tokens)).mean() <= MEAN_GAP
    assert np.abs(scores - learner_logprobs(model, tokens)).mean() > 10 * MEAN_GAP


async def test_recomputed_conversations_continue_as_if_the_new_weights_had_read_them(engine, model):
    idle = await open_conversation(engine, "idle")
    await idle.turn(random_tokens(50, 1), max_tokens=10, seed=1)
    running = await open_conversation(engine, "running")
    turn = asyncio.create_task(running.turn(random_tokens(40, 2), max_tokens=150, seed=2))
    await asyncio.sleep(0.7)
    updated = shifted(model, 3)
    receipt = await publish(engine, updated, recompute_running=True)
    assert receipt.recomputed_sessions == 2

    generation = await turn
    assert generation.finish == "length"
    assert len(set(generation.versions)) == 2
    await idle.turn(random_tokens(5, 3), max_tokens=10, seed=3)
    for conversation in (idle, running):
        await conversation.finish()
        report = conversation.report
        assert report.publish_recomputed_tokens > 40
        assert report.computed_tokens == len(conversation.tokens) - 1
    assert idle.report.publish_recomputed_tokens == 59
    new = np.concatenate([idle.logprobs[-10:], running.logprobs[-20:]])
    expected = np.concatenate(
        [
            learner_logprobs(updated, idle.tokens)[-10:],
            learner_logprobs(updated, running.tokens)[-20:],
        ]
    )
    assert np.abs(new - expected).mean() <= MEAN_GAP


async def test_a_closed_conversation_gives_its_seat_to_the_next(engine):
    open_sessions = [await engine.open("seat") for _ in range(CONFIG.max_concurrent_episodes)]
    waiting = asyncio.create_task(engine.open("waiting"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await open_sessions.pop().close()
    open_sessions.append(await waiting)
    for session in open_sessions:
        await session.close()
