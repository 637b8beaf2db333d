"""Our model in vLLM: registration, called by vLLM in each of its processes.

The plugin runs `model.decoder.Decoder` as it is and supplies a mixer whose past lives in vLLM's
cache: paged latents for MLA, one page of convolution tail and memory per KDA layer.
"""

ARCHITECTURE = "HybridForCausalLM"
"""Name of the model class in a checkpoint's config.json."""


def register() -> None:
    """Tell transformers and vLLM about the model. Idempotent; the model class loads when used."""
    from vllm import ModelRegistry

    from model import hybrid

    hybrid.register()
    if ARCHITECTURE not in ModelRegistry.models:
        ModelRegistry.register_model(ARCHITECTURE, "model.vllm_plugin.decoder:VllmDecoder")
