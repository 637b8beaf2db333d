import pytest


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A folder with a tiny policy of random weights and a tokenizer for both environments."""
    import torch

    from model.checkpoint import save
    from model.hybrid import HybridConfig, HybridForCausalLM
    from model.presets import tiny
    from rollout.tokenizer import Tokenizer

    folder = tmp_path_factory.mktemp("checkpoint")
    texts = ["code f(xs): keep numbers above 4, then add 2", "gallium: in which year?"] * 3
    Tokenizer.train(texts, 350).save(folder)
    torch.manual_seed(0)
    save(HybridForCausalLM(HybridConfig(**tiny(1024).to_json())), folder)
    return folder
