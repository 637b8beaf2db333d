"""The whole loop around a collector that is a small model in this process: no Ray, no engine."""

import asyncio
import contextlib
import importlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from envs.episode import Episode, StopReason
from model import checkpoint as checkpoints
from model.config import ModelConfig
from model.hybrid import build_model
from model.logprobs import sequence_logprobs
from model.mixer import PackedMixer
from rewards.reward import Blame, Invalid, Scored
from rl.config import RunConfig
from rl.metrics import read_metrics
from rl.progress import open_progress
from rl.run import Run
from rl.train import NoSampleError, is_due, train
from rollout.seeds import derive_seed
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Group, Segment, Source, TokenSpan, Trajectory
from rollout.trajectory_store import read_groups
from rollout.weight_update import PublishError, PublishReceipt, combine_checksums, tensor_checksum

SHAPE = ModelConfig(
    vocab_size=300,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=1,
    full_attn_layers=(2,),
    attn_res_block_size=2,
    kda_head_dim=16,
    q_lora_rank=8,
    kv_lora_rank=32,
    qk_nope_head_dim=8,
    v_head_dim=8,
    intermediate_size=16,
    num_experts=4,
    num_experts_per_token=2,
    routed_expert_hidden_size=8,
    moe_intermediate_size=8,
)


class FakeCollector:
    """Samples fixed tokens, but scores them with the weights that it was last sent."""

    num_engines = 1

    def __init__(self, folder):
        self.model = checkpoints.load(folder)
        self.version = 0
        self.started = []  # (task, round, version) of each group
        self.is_broken = False
        self.is_deaf = False

    async def publish(self, manifest, *, recompute_running):
        assert not recompute_running
        weights = load_file(manifest.path)
        if not self.is_deaf:
            self.model.load_state_dict(weights)
        self.version = manifest.version
        live = {name: tensor_checksum(value) for name, value in self.model.state_dict().items()}
        return [
            PublishReceipt(
                version=manifest.version,
                checksum=combine_checksums(live),
                total_bytes=manifest.total_bytes,
                seconds=0.0,
            )
        ]

    async def collect_group(self, task, group_size, round_index):
        self.started.append((task.id, round_index, self.version))
        members = [self._play(task, sibling, round_index) for sibling in range(group_size)]
        await asyncio.sleep(0)
        return Group(id=f"{task.id}@{round_index}", task=task, trajectories=tuple(members))

    async def evaluate(self, tasks, temperature):
        assert temperature == 1.0
        return [self._play(task, 0, 0) for task in tasks]

    async def score(self, token_ids):
        return self._score(token_ids)

    def _score(self, token_ids):
        tokens = torch.tensor(token_ids)
        with torch.no_grad():
            logprobs, _ = sequence_logprobs(self.model, tokens, torch.tensor([0, len(tokens)]))
        return logprobs.numpy()

    def _route(self, token_ids):
        tokens = torch.tensor(token_ids)
        with torch.no_grad():
            mixer = PackedMixer(torch.tensor([0, len(tokens)]))
            return self.model.model.run(tokens, mixer).expert_ids.numpy()

    def _play(self, task, sibling, round_index):
        random = np.random.default_rng(derive_seed(task.id, sibling, round_index))
        token_ids = random.integers(10, 300, size=8)
        logprobs = self._score(token_ids.tolist())
        logprobs[:4] = 0.0
        spans = [
            TokenSpan(start=0, stop=4, source=Source.PROMPT, turn=0, policy_version=self.version),
            TokenSpan(start=4, stop=8, source=Source.POLICY, turn=0, policy_version=self.version),
        ]
        segment = Segment(
            token_ids=token_ids.astype(np.int32),
            spans=tuple(spans),
            behavior_logprobs=logprobs,
            expert_ids=self._route(token_ids.tolist()),
        )
        is_invalid = self.is_broken or sibling == 3
        invalid = Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE)
        return Trajectory(
            id=f"{task.id}#{sibling}@{round_index}",
            episode=Episode(task=task, messages=(), stop=StopReason.FINISHED),
            segments=(segment,),
            turns=(),
            outcome=invalid if is_invalid else Scored(value=float(sibling % 2)),
            computed_tokens=8,
        )


@pytest.fixture
def fake(work_folder, monkeypatch):
    folder = work_folder / "small"
    checkpoints.save(build_model(SHAPE, seed=0), folder)
    Tokenizer.train(["say word1", "heard"], 300).save(folder)
    collector = FakeCollector(folder)

    @contextlib.asynccontextmanager
    async def start(_config, _checkpoint, _log_folder):
        yield collector

    # `rl.train` is also the public function, so the module is asked for by its name.
    monkeypatch.setattr(importlib.import_module("rl.train"), "start_collector", start)
    return collector


def make_run(**sections):
    config = RunConfig.model_validate(
        {
            "run": {"steps": 4, **sections.pop("run", {})},
            "model": {"checkpoint": "small"},
            "environments": {"echo": {"use": "echo_world:SPEC"}},
            "credit": {"group_size": 4, "groups_per_step": 2},
            "learner": {"learning_rate": 1e-2},
            **sections,
        }
    )
    return Run.create(config)


async def train_in(run):
    with run, open_progress() as progress:
        return await train(run.config, run, progress)


@pytest.mark.parametrize("max_lag", [0, 1, 2])
async def test_no_group_is_further_behind_than_the_bound(fake, max_lag):
    run = make_run(rollout={"max_lag": max_lag})
    await train_in(run)
    for index, (_, _, version) in enumerate(fake.started):
        step = index // 2
        assert version == max(0, step - max_lag)
    steps = [line for line in read_metrics(run.metrics_path) if line["kind"] == "step"]
    assert [line["rollout/lag_max"] for line in steps] == [min(step, max_lag) for step in range(4)]


async def test_engine_and_learner_agree_at_every_step_although_the_weights_move(fake):
    run = make_run()
    before = {name: value.clone() for name, value in fake.model.state_dict().items()}
    result = await train_in(run)
    moved = [
        not torch.equal(before[name], value) for name, value in fake.model.state_dict().items()
    ]
    assert any(moved)
    assert result.logprob_gap_mean < 1e-5
    steps = [line for line in read_metrics(run.metrics_path) if line["kind"] == "step"]
    assert len(steps) == 4
    for line in steps:
        parts = ("collect_wait", "learn", "publish", "agreement")
        measured = sum(line[f"time/{part}_seconds"] for part in parts)
        assert measured == pytest.approx(line["time/step_seconds"], abs=0.01)
        assert line["rl/logprob_gap_mean"] < 1e-5
        assert line["rl/probe_gap_mean"] < 1e-5


async def test_every_step_records_the_load_of_each_layers_experts(fake):
    run = make_run()
    await train_in(run)
    steps = [line for line in read_metrics(run.metrics_path) if line["kind"] == "step"]
    for line in steps:
        # One layer of four experts, two per token: from balance to two dead ones.
        assert 0.0 <= line["model/load_violation/0"] <= 1.0
        assert line["model/dead_experts/0"] in (0, 1, 2)
        assert "model/load_violation/1" not in line
    assert any(line["model/load_violation/0"] > 0.0 for line in steps)


async def test_an_engine_that_keeps_its_old_weights_stops_the_run(fake):
    fake.is_deaf = True
    with pytest.raises(PublishError, match="policy version 1 has"):
        await train_in(make_run())


async def test_the_run_folder_holds_every_step_and_both_evaluations(fake):
    run = make_run(evaluate={"every_steps": 2}, checkpoint={"every_steps": 2})
    result = await train_in(run)
    lines = read_metrics(run.metrics_path)
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("evaluation", 0),
        ("step", 1),
        ("step", 2),
        ("evaluation", 2),
        ("step", 3),
        ("step", 4),
        ("evaluation", 4),
    ]
    assert len(read_groups(run.trajectories_folder / "step-0003.jsonl")) == 2
    assert list(run.checkpoints()) == [2, 4]
    assert result.checkpoint == run.checkpoints()[4]
    assert Tokenizer.load(result.checkpoint).vocabulary_size <= 300
    saved = checkpoints.load(result.checkpoint).state_dict()
    for name, value in fake.model.state_dict().items():
        assert torch.allclose(saved[name], value, rtol=1e-2, atol=1e-3)


async def test_the_result_counts_what_happened(fake):
    result = await train_in(make_run())
    assert result.invalid == {"sandbox_failed": 8}  # one of four siblings, in eight groups
    assert result.recomputed_token_ratio == 1.0
    assert result.mixed_version_tokens == 0
    assert (result.before, result.after) == ({"echo": 0.0}, {"echo": 0.0})
    assert result.steps == 4
    assert json.dumps(result.to_json())


async def test_a_step_without_any_score_stops_the_run_with_the_reason(fake):
    fake.is_broken = True
    with pytest.raises(NoSampleError, match=r"none of 2 groups .* sandbox_failed"):
        await train_in(make_run())


async def test_two_runs_of_the_same_seed_train_on_the_same_groups(fake):
    await train_in(make_run(rollout={"max_lag": 0}))
    first = list(fake.started)
    fake.started.clear()
    fake.version = 0
    await train_in(make_run(rollout={"max_lag": 0}))
    assert fake.started == first


@pytest.mark.parametrize(
    ("every", "due"), [(0, []), (2, [2, 4]), (3, [3]), (6, [])], ids=["never", "2", "3", "at end"]
)
def test_the_last_step_is_never_due(every, due):
    assert [step for step in range(1, 7) if is_due(every, step, num_steps=6)] == due


async def test_nothing_stays_in_shared_memory(fake, tmp_path, monkeypatch):
    publish = importlib.import_module("rl.publish")
    monkeypatch.setattr(publish, "write_weights", _write_weights_into(tmp_path / "shm"))
    (tmp_path / "shm").mkdir()
    await train_in(make_run())
    assert list((tmp_path / "shm").iterdir()) == []


def _write_weights_into(folder):
    from rollout.weight_update import write_weights

    def write(tensors, version):
        manifest = write_weights(tensors, version, folder)
        assert manifest.path.is_file()
        return manifest

    return write


def steps_of(run):
    return [line for line in read_metrics(run.metrics_path) if line["kind"] == "step"]


async def test_a_critic_is_pretrained_studies_every_step_and_is_saved(fake):
    run = make_run(
        credit={"type": "tb_gae", "group_size": 4, "groups_per_step": 2},
        critic={"pretrain_steps": 2},
    )
    result = await train_in(run)
    lines = read_metrics(run.metrics_path)
    kinds = [line["kind"] for line in lines]
    assert kinds == ["evaluation", *["pretraining"] * 2, *["step"] * 4, "evaluation"]
    for line in steps_of(run):
        assert line["rl/critic_weight"] == 1.0
        assert line["rl/critic_loss"] > 0
        assert line["rl/advantage_rms"] > 0
        assert line["time/critic_seconds"] > 0
    assert (result.checkpoint / "critic.safetensors").is_file()
    # The groups of pre-training are none of a step.
    rounds = [round_index for _, round_index, _ in fake.started]
    assert [r >= 1_000_000 for r in rounds] == [True] * 4 + [False] * 8


async def test_a_run_goes_on_with_the_critic_of_its_checkpoint(fake):
    section = {"type": "tb_gae", "group_size": 4, "groups_per_step": 2}
    first = await train_in(make_run(credit=section, critic={"pretrain_steps": 1}))
    second = make_run(credit=section, model={"checkpoint": str(first.checkpoint)})
    fake.model = checkpoints.load(first.checkpoint)
    fake.version = 0
    await train_in(second)
    assert "pretraining" not in [line["kind"] for line in read_metrics(second.metrics_path)]


async def test_a_critic_that_explains_nothing_is_not_used_and_the_run_says_so(fake, capsys):
    """Rewards follow the sibling's number, which no token tells."""
    run = make_run(
        credit={"type": "tb_gae_mix", "group_size": 4, "groups_per_step": 2},
        critic={"pretrain_steps": 0, "learning_rate": 1e-9},
    )
    await train_in(run)
    assert [line["rl/critic_weight"] for line in steps_of(run)] == [0.0] * 4
    line = "of held-out outcomes: credit is outcome - rloo / ema_rms"
    assert line in capsys.readouterr().err
    assert line in run.log_path.read_text()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "cispo", "gigpo", "prime_dppo", "sao"])
async def test_presets_train(fake, name):
    credit = {"type": name, "group_size": 4, "groups_per_step": 2}
    run = make_run(run={"steps": 2}, credit=credit, critic={"pretrain_steps": 1})
    before = {key: value.clone() for key, value in fake.model.state_dict().items()}
    await train_in(run)
    after = fake.model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert [line["rl/advantage_rms"] > 0 for line in steps_of(run)] == [True, True]


async def test_a_step_that_cannot_be_learned_from_keeps_its_group_for_a_replay(fake, monkeypatch):
    learner_module = importlib.import_module("rl.learner")
    whole = learner_module.sequence_logprobs

    def poisoned(*args, **kwargs):
        logprobs, entropy = whole(*args, **kwargs)
        return (logprobs * float("nan"), entropy) if "scored" in kwargs else (logprobs, entropy)

    monkeypatch.setattr(learner_module, "sequence_logprobs", poisoned)
    run = make_run()
    with pytest.raises(ArithmeticError, match="log-probs that are not finite") as error:
        await train_in(run)
    [group] = read_groups(run.trajectories_folder / "failure-0000.jsonl")
    assert error.value.trajectory_id in [member.id for member in group.trajectories]


async def test_a_teacher_that_is_the_policy_teaches_nothing_new_and_another_does(fake, work_folder):
    other = work_folder / "other"
    checkpoints.save(build_model(SHAPE, seed=5), other)
    rms = []
    for folder in ("small", "other"):
        fake.model, fake.version = checkpoints.load("small"), 0
        run = make_run(run={"steps": 1}, distillation={"teachers": {"*": folder}})
        await train_in(run)
        rms.append(steps_of(run)[0]["rl/loss"])
    assert rms[0] != pytest.approx(rms[1], abs=1e-3)
