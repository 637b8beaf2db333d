import subprocess
import sys
from pathlib import Path

import pytest

from rl.config_loader import ConfigError, load_config

GOOD = """
[run]
steps = 5

[model]
checkpoint = "somewhere"

[environments.retrieval]
"""


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


def message_of(files, overrides=()):
    with pytest.raises(ConfigError) as raised:
        load_config(files, overrides)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_later_files_win_key_by_key_and_overrides_win_over_files(good, tmp_path):
    overlay = tmp_path / "overlay.toml"
    overlay.write_text('[run]\nname = "mine"\nsteps = 7\n[environments.retrieval]\nweight = 2\n')
    config = load_config([good, overlay], ["run.steps=9", "environments.retrieval.options.k=[1]"])
    assert (config.run.name, config.run.steps) == ("mine", 9)
    assert config.environments["retrieval"].weight == 2.0
    assert config.environments["retrieval"].options == {"k": [1]}
    assert load_config(good).run.steps == 5


def test_an_override_is_a_toml_literal_and_a_bare_word_is_a_string(good):
    config = load_config(
        good, ["run.name=a-word", 'run.folder="quoted"', "publish.recompute_running=true"]
    )
    assert config.run.name == "a-word"
    assert str(config.run.folder) == "quoted"
    assert config.publish.recompute_running is True


def test_the_resolved_configuration_can_be_loaded_again(good, tmp_path):
    config = load_config(good, ["run.steps=3"])
    resolved = tmp_path / "config.json"
    resolved.write_text(config.model_dump_json())
    assert load_config(resolved) == config


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.stepz=3", "override: run.stepz = 3: no such key (did you mean run.steps?)"),
        ("train.steps=3", "override: train.steps = 3: no such key (did you mean run.steps?)"),
        ("train.stepz=3", "override: train.stepz = 3: no such key (did you mean run.steps?)"),
        ("environments.retrieval.weigth=1", "(did you mean environments.retrieval.weight?)"),
        ("publish.foo=1", "([publish] has recompute_running, probe_trajectories)"),
        ("run.steps=0", "override: run.steps = 0: must be at least 1"),
        ("loss.ratio_low=1.0", "override: loss.ratio_low = 1.0: must be below 1"),
        ("run.steps=true", "override: run.steps = true: must be a whole number"),
        ('run.steps="3"', 'override: run.steps = "3": must be a whole number'),
        ("run.steps=1.5", "override: run.steps = 1.5: must be a whole number"),
        ("run.name=3", "override: run.name = 3: must be a string"),
        ("run.steps=1000000", "override: run.steps = 1000000: must be at most 100000"),
        ("run.name=a/b", 'override: run.name = "a/b": must match ^[^/]+$'),
        ("run=3", "override: run = 3: must be a table"),
        ("run.steps.x=3", "override: run.steps is a value, not a table"),
        ("learner.learning_rate=nan", "learner.learning_rate = nan: must be a finite number"),
        ("run.name=1979-05-27", "run.name = 1979-05-27: dates and times are not used here"),
        ("run.name=[1,", "override 'run.name=[1,': not a TOML value"),
        ("run.steps", "override 'run.steps': expected section.key=value"),
        ("=3", "override '=3': expected section.key=value"),
        ("rollout.max_tokens=64", "rollout.max_sampled_tokens = 64 leaves no room"),
        ("learner.max_batch_tokens=100", "learner.max_batch_tokens = 100 is below"),
    ],
)
def test_a_bad_override_is_one_line_that_says_what_and_how(good, override, said):
    assert said in message_of(good, [override])


def test_a_bad_key_in_a_file_names_the_file(good, tmp_path):
    overlay = tmp_path / "overlay.toml"
    overlay.write_text("[run]\nsteps = 0\n")
    assert message_of([good, overlay]) == f"{overlay}: run.steps = 0: must be at least 1"


def test_several_findings_are_counted_and_the_first_is_told(good):
    text = message_of(good, ["run.steps=0", "learner.threads=0"])
    assert text.endswith("(and 1 more)")


def test_a_toml_error_names_file_and_line(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[run]\nname = 'a'\nsteps = \n")
    assert message_of(path).startswith(f"{path}:3: not TOML: ")
    path.write_text("[run]\nname = 'a\n")
    assert message_of(path).startswith(f"{path}:2: not TOML: ")


def test_a_missing_file_is_said_with_the_name_that_was_meant(good):
    wanted = good.with_name("godo.toml")
    assert message_of(wanted) == f"{wanted}: no such file (did you mean {good}?)"


def test_an_override_without_a_value_is_no_missing_file():
    said = "run.steps: no such file (an override has a value: run.steps=...)"
    assert message_of(Path("run.steps")) == said


def test_an_unreadable_file_is_one_line(tmp_path):
    assert "cannot be read" in message_of(tmp_path)
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    assert "cannot be read" in message_of(path)


def test_missing_sections_and_keys_are_named(tmp_path):
    path = tmp_path / "part.toml"
    path.write_text("[environments.retrieval]\n")
    assert message_of(path) == f"{path}: the section [model] is missing"
    path.write_text("[model]\n[environments.retrieval]\n")
    assert "model.checkpoint is missing" in message_of(path)
    path.write_text("[model]\ncheckpoint = 'x'\n[environments]\n")
    assert "environments" in message_of(path)
    assert "no configuration file" in message_of([])


def test_loading_a_configuration_loads_no_tensor_library(good):
    code = (
        "import sys; from rl.config_loader import load_config; load_config(sys.argv[1]);"
        "print([m for m in ('torch', 'ray', 'vllm', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(good)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
