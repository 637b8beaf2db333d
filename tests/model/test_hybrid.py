"""The model as transformers and TRL use it."""

import sys
import types

import pytest
import torch
from transformers import AutoModelForCausalLM

import model
from model import hybrid
from model.checkpoint import save
from model.hybrid import HybridConfig, build_model
from model.logprobs import sequence_logprobs
from model.presets import tiny


def test_auto_classes_read_a_checkpoint_in_float32(tmp_path):
    built = build_model(tiny(), seed=0)
    save(built, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is hybrid.HybridForCausalLM
    assert loaded.dtype == torch.float32
    for name, tensor in built.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=1e-2, atol=1e-5)


def test_save_pretrained_round_trip_is_exact(tmp_path):
    built = build_model(tiny(), seed=0)
    built.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.shape == built.config.shape
    for name, tensor in built.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_registration_may_be_repeated():
    hybrid.register()
    hybrid.register()


def test_engine_facts_are_in_the_configuration():
    config = HybridConfig.from_shape(tiny())
    assert config.head_dim == 32
    assert config.num_key_value_heads == 1
    assert config.max_position_embeddings == 1 << 20
    assert config.layers_block_type == ["mamba", "mamba", "mamba", "attention"]


def test_the_same_seed_builds_the_same_weights_and_spares_the_global_state():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first = build_model(tiny(), seed=5)
    assert torch.equal(torch.rand(4), expected)
    second = build_model(tiny(), seed=5)
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, build_model(tiny(), seed=6).lm_head.weight)


def test_initial_predictions_are_close_to_uniform():
    built = build_model(tiny(), seed=0)
    logprobs, _ = sequence_logprobs(built, torch.randint(0, 1024, (200,)), torch.tensor([0, 200]))
    assert abs(-logprobs[1:].mean().item() - torch.log(torch.tensor(1024.0)).item()) < 0.1


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_loss_equals_packed_log_probs(side):
    built = build_model(tiny(), seed=0)
    tokens, mask = torch.randint(0, 1024, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[1, slice(0, 8) if side == "left" else slice(12, 20)] = 0
    output = built(tokens, mask, labels=tokens.masked_fill(mask == 0, -100))
    logprobs, _ = sequence_logprobs(built, tokens[mask.bool()], torch.tensor([0, 20, 32]))
    # On the left, transformers also scores the first token of the padded row, from a padding state.
    expected = -logprobs.sum() / 30
    if side == "left":
        expected = (expected * 30 + torch.log(torch.tensor(1024.0))) / 31
    torch.testing.assert_close(output.loss, expected)


def test_generate_continues_a_prompt():
    built = build_model(tiny(), seed=0).eval()
    prompt = torch.randint(0, 1024, (1, 6))
    output = built.generate(prompt, max_new_tokens=3, do_sample=False, use_cache=False)
    assert torch.equal(output[:, :6], prompt)
    assert output[0, 6] == built(prompt).logits[0, -1].argmax()


def test_a_shadowing_package_of_the_name_kernels_is_reported(monkeypatch):
    foreign = types.ModuleType("kernels")
    foreign.__file__ = "/somewhere/kernels/__init__.py"
    monkeypatch.setitem(sys.modules, "kernels", foreign)
    source = model.__spec__.loader.get_code("model")
    with pytest.raises(ImportError, match=r"/somewhere/kernels/__init__.py.*Hugging Face"):
        exec(source, {"__name__": "model"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trl_trains_it(tmp_path):
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    rows = [
        {"input_ids": [2, 3, 4, 5, 6, 7], "labels": [-100, -100, 4, 5, 6, 7]},
        {"input_ids": [2, 3, 8], "labels": [-100, -100, 8]},
    ]
    built = build_model(tiny(), seed=0)
    before = {name: tensor.clone() for name, tensor in built.state_dict().items()}
    trainer = SFTTrainer(
        model=built,
        args=SFTConfig(
            output_dir=str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=2,
            learning_rate=1e-2,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list(rows * 8),
        processing_class=tokenizer,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert not torch.equal(built.lm_head.weight, before["lm_head.weight"])
