"""The warm start: what the trainer is really given, and that the checkpoint fits its report."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from envs.environment import Split
from model import checkpoint, presets
from model.expert_load import ExpertLoad
from model.hybrid import build_model
from model.mixer import PackedMixer
from model.moe_layer import Router
from rl.config import RunConfig
from rl.config_loader import load_config
from rl.demonstrations import play_demonstrations
from rl.warm_start import IGNORED, REPORT_NAME, build_trainer, tokenize, train_tokenizer, warm_start
from rollout.tokenizer import Tokenizer

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"


def make_config(**section):
    return RunConfig.model_validate(
        {
            "model": {"checkpoint": "warm"},
            "environments": {"echo": {"use": "echo_world:SPEC"}},
            "warm_start": {
                "demonstrations_per_environment": 24,
                "batch_size": 8,
                "epochs": [1],
                "threads": 1,
                "vocabulary_size": 300,
                **section,
            },
        }
    )


def policy_positions(tokenizer, token_ids):
    """An independent reading: the policy writes from after its marker to the next end token."""
    is_policy, positions = False, set()
    for position, token in enumerate(token_ids):
        if is_policy:
            positions.add(position)
        if token in (tokenizer.policy_id, tokenizer.end_id):
            is_policy = token == tokenizer.policy_id
    return positions


def test_a_checkpoint_that_cannot_be_written_is_said_before_anything_is_played(work_folder):
    (work_folder / "file").write_text("")
    for folder in ("file", "file/below"):
        config = load_config("run.toml", [f"model.checkpoint={folder}"])
        with pytest.raises(ValueError, match=rf"model\.checkpoint = {folder}: "):
            warm_start(config)


@pytest.mark.usefixtures("work_folder")
def test_the_labels_that_the_trainer_collates_are_the_policys_tokens_and_no_others():
    config = make_config()
    demonstrations = play_demonstrations(config, Split.TRAIN)
    tokenizer = train_tokenizer(demonstrations, 300)
    rows = tokenize(demonstrations, tokenizer, config.rollout.max_tokens)
    model = build_model(presets.get_preset("tiny", 300), seed=0)
    trainer = build_trainer(model, tokenizer, rows, rows[:1], config.warm_start, seed=0)

    num_rows = 0
    for batch in trainer.get_train_dataloader():
        for token_ids, labels, mask in zip(
            batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True
        ):
            num_rows += 1
            length = int(mask.sum())
            positions = policy_positions(tokenizer, token_ids[:length].tolist())
            expected = torch.full_like(labels, IGNORED)
            expected[sorted(positions)] = token_ids[sorted(positions)]
            assert positions
            assert labels.tolist() == expected.tolist()
            assert (token_ids[length:] == tokenizer.pad_id).all()
    assert num_rows == 24


@pytest.mark.usefixtures("work_folder")
def test_demonstrations_are_the_same_again_and_from_the_kept_file(tmp_path):
    config = make_config()
    played = play_demonstrations(config, Split.TRAIN, tmp_path / "kept")
    assert played == play_demonstrations(config, Split.TRAIN)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert played == play_demonstrations(config, Split.TRAIN, tmp_path / "kept")


@pytest.mark.usefixtures("work_folder")
def test_held_out_demonstrations_share_no_task_with_the_training_ones():
    config = make_config(demonstrations_per_environment=100)
    tasks = [
        {demonstration.episode.task.id for demonstration in play_demonstrations(config, split)}
        for split in (Split.TRAIN, Split.HELD_OUT)
    ]
    assert all(tasks)
    assert not tasks[0] & tasks[1]


@pytest.mark.usefixtures("work_folder")
def test_a_demonstration_longer_than_an_episode_is_refused():
    config = make_config()
    demonstrations = play_demonstrations(config, Split.TRAIN)
    tokenizer = train_tokenizer(demonstrations, 300)
    with pytest.raises(ValueError, match=r"more than rollout\.max_tokens = 4: raise it"):
        tokenize(demonstrations, tokenizer, max_tokens=4)


@pytest.mark.slow
@pytest.mark.usefixtures("work_folder")
def test_a_warm_start_writes_a_checkpoint_that_loads_with_its_tokenizer_and_report():
    config = make_config(epochs=[1, 2])
    report = warm_start(config)
    folder = config.model.checkpoint
    assert checkpoint.load(folder).config.shape.vocab_size == 300
    assert Tokenizer.load(folder).vocabulary_size == report.vocabulary_size
    assert json.loads((folder / REPORT_NAME).read_text()) == dataclasses.asdict(report)
    assert report.num_updates == 9
    assert 0.0 < report.held_out_loss < 5.7  # log(300) is a policy that knows nothing
    assert (folder / "model.safetensors").stat().st_size < 4_000_000


def make_short_training(balance_experts):
    """A tiny model whose first experts are far too popular, and a trainer of three updates."""
    config = make_config(balance_experts=balance_experts)
    demonstrations = play_demonstrations(config, Split.TRAIN)
    tokenizer = train_tokenizer(demonstrations, 300)
    rows = tokenize(demonstrations, tokenizer, config.rollout.max_tokens)
    model = build_model(presets.get_preset("tiny", 300), seed=0)
    for router in routers(model):
        router.correction[:2] = 0.5
    return model, rows, build_trainer(model, tokenizer, rows, rows[:1], config.warm_start, seed=0)


def routers(model):
    return [module for module in model.modules() if isinstance(module, Router)]


def violations(model, rows):
    token_ids = torch.tensor([token for row in rows for token in row["input_ids"]])
    lengths = [0, *(len(row["input_ids"]) for row in rows)]
    with torch.no_grad():
        mixer = PackedMixer(torch.tensor(lengths).cumsum(0))
        expert_ids = model.model.run(token_ids, mixer).expert_ids
    return ExpertLoad.of(expert_ids, model.config.shape.num_experts).max_violation()


@pytest.mark.usefixtures("work_folder")
def test_a_warm_start_evens_out_the_load_and_its_checkpoint_keeps_the_correction(tmp_path):
    model, rows, trainer = make_short_training(balance_experts=True)
    before = violations(model, rows)
    trainer.train()
    assert min(before) > 1.0
    assert max(violations(model, rows)) < 0.5 * min(before)
    checkpoint.save(model, tmp_path / "warm")
    loaded = checkpoint.load(tmp_path / "warm")
    for mine, kept in zip(routers(model), routers(loaded), strict=True):
        assert kept.correction.dtype == torch.float32
        assert torch.equal(mine.correction, kept.correction)


@pytest.mark.usefixtures("work_folder")
def test_a_warm_start_leaves_the_correction_alone_where_it_shall_not_balance():
    model, _, trainer = make_short_training(balance_experts=False)
    before = [router.correction.clone() for router in routers(model)]
    trainer.train()
    for router, correction in zip(routers(model), before, strict=True):
        assert torch.equal(router.correction, correction)


def test_the_kept_checkpoint_was_made_from_the_quickstart_configuration():
    """Change `[warm_start]` or an environment's options, and the checkpoint must be made anew."""
    config = load_config([QUICKSTART], [])
    folder = QUICKSTART.parents[1] / config.model.checkpoint
    if not folder.exists():
        pytest.skip("the checkpoint is not in this checkout: `limosa warm-start` makes it")
    report = json.loads((folder / REPORT_NAME).read_text())
    assert report["warm_start"] == config.warm_start.model_dump(mode="json")
    assert report["environments"] == {
        name: environment.model_dump(mode="json")
        for name, environment in config.environments.items()
    }
    assert (report["preset"], report["seed"]) == (config.model.preset, config.run.seed)
    assert (folder / "model.safetensors").stat().st_size < 4_000_000
