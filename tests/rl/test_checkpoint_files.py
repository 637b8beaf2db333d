import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from rl.checkpoint_files import check_checkpoint, read_shapes
from rollout.tokenizer import Tokenizer


def test_a_whole_checkpoint_passes(checkpoint):
    check_checkpoint(checkpoint)


def test_shapes_are_read_from_the_header(checkpoint):
    shapes = read_shapes(checkpoint / "model.safetensors")
    assert shapes["model.embed_tokens.weight"] == [300, 128]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(checkpoint, name):
    (checkpoint / name).unlink()
    with pytest.raises(ValueError, match=f"it has no {name}"):
        check_checkpoint(checkpoint)


@pytest.mark.parametrize("keep", [4, 40, -1])
def test_weights_that_are_cut_short_are_found(checkpoint, keep):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        check_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("vocab_size", 299, "has shape"), ("num_hidden_layers", 2, "4 layers")],
)
def test_a_configuration_that_does_not_fit_the_weights_is_found(checkpoint, key, value, said):
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=said):
        check_checkpoint(checkpoint)


def test_a_broken_configuration_is_found(checkpoint):
    (checkpoint / "config.json").write_text("[1")
    with pytest.raises(ValueError, match="not JSON"):
        check_checkpoint(checkpoint)
    (checkpoint / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="not a JSON object"):
        check_checkpoint(checkpoint)


def test_a_tokenizer_larger_than_the_model_is_found(checkpoint):
    Tokenizer.train(["many different words", "and more of them, again and again"] * 3, 330).save(
        checkpoint
    )
    with pytest.raises(ValueError, match="tokens, the model only 300"):
        check_checkpoint(checkpoint)


def test_weights_of_something_else_are_found(checkpoint):
    save_file({"other": np.zeros(3, np.float32)}, checkpoint / "model.safetensors")
    with pytest.raises(ValueError, match=r"it has no model\.embed_tokens\.weight"):
        check_checkpoint(checkpoint)


@pytest.mark.parametrize("header", [[1], {"x": 1}, {"x": {"shape": [1]}}])
def test_a_header_of_another_form_is_one_line(checkpoint, header):
    text = json.dumps(header).encode()
    (checkpoint / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match="the safetensors header is damaged"):
        check_checkpoint(checkpoint)
