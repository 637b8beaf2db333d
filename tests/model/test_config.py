"""Model shapes: round trip through JSON, and what they refuse."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from model.config import ModelConfig
from model.presets import get_preset, tiny


def test_json_round_trip_keeps_every_field():
    shape = tiny(512)
    assert ModelConfig.from_json(json.loads(json.dumps(shape.to_json()))) == shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full_attn_layers": (3,)}, "end with the last layer"),
        ({"full_attn_layers": ()}, "end with the last layer"),
        ({"full_attn_layers": (3, 2, 4)}, "must increase"),
        ({"gate_lower_bound": -6.0}, "outside"),
        ({"gate_lower_bound": 0.0}, "outside"),
        ({"kv_lora_rank": 16}, "below 32"),
        ({"num_experts_per_token": 9}, "exceeds num_experts"),
        ({"hidden_size": 0}, "hidden_size = 0 must be positive"),
        ({"first_k_dense_replace": 5}, "exceeds num_hidden_layers"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(tiny(), **change)


def test_an_incomplete_or_mistyped_json_is_refused():
    values = tiny().to_json()
    with pytest.raises(ValueError, match="hidden_size = 'wide'"):
        ModelConfig.from_json(values | {"hidden_size": "wide"})
    with pytest.raises(ValueError, match="full_attn_layers = 4"):
        ModelConfig.from_json(values | {"full_attn_layers": 4})
    del values["hidden_size"]
    with pytest.raises(ValueError, match="incomplete"):
        ModelConfig.from_json(values)


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="there is: tiny"):
        get_preset("huge", 1024)


def test_shapes_are_importable_without_torch_or_transformers():
    code = (
        "import sys, model.config, model.presets;"
        "assert not {'torch', 'transformers', 'vllm', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
