"""Every file in configs/ is a configuration that loads, and the metric table is complete."""

from pathlib import Path

import pytest

from rl.config import RunConfig

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_config_loads(path, monkeypatch):
    from rl.config_loader import load_config

    monkeypatch.chdir(ROOT)
    config = load_config([path], [])
    assert config.environments


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_config_survives_being_resolved_and_read_again(path, monkeypatch):
    from rl.config_loader import load_config

    monkeypatch.chdir(ROOT)
    config = load_config([path], [])
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_every_field_of_the_configuration_is_described():
    def undescribed(section, prefix=""):
        for name, field in section.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                yield from undescribed(field.annotation, f"{prefix}{name}.")
            elif not field.description and f"{prefix}{name}" != "environments":
                yield f"{prefix}{name}"

    assert list(undescribed(RunConfig)) == []
