"""The vLLM model class: our decoder and head around a mixer that vLLM's cache feeds."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid

from kernels.rows import ROW_STEP
from model.config import ModelConfig
from model.decoder import Decoder
from model.vllm_plugin.cache_shape import page_shapes
from model.vllm_plugin.recording import Recorder
from model.vllm_plugin.state_mixer import StateMixer
from model.vllm_plugin.workarounds import apply_workarounds

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def _shape_of(vllm_config: VllmConfig) -> ModelConfig:
    return ModelConfig.from_json(vllm_config.model_config.hf_config.to_dict())


class VllmDecoder(nn.Module, HasInnerState, IsHybrid):
    """`model.decoder.Decoder` and its head as vLLM wants them.

    Every weight is a plain parameter: vLLM's own linear layers repack theirs on a CPU, and a
    publish in place would have no effect.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        apply_workarounds()
        config = _shape_of(vllm_config)
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.mixer = StateMixer(config, vllm_config, prefix or "decoder")
        self.recorder = Recorder()
        self._runner: GPUModelRunner | None = None

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[Any, ...]:
        """Shapes of the largest page of states."""
        return page_shapes(_shape_of(vllm_config))

    @classmethod
    def get_mamba_state_dtype_from_config(
        cls,
        vllm_config: VllmConfig,  # noqa: ARG003  vLLM's signature
    ) -> tuple[torch.dtype, ...]:
        """Both parts of the state are float32."""
        return torch.float32, torch.float32

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        """How vLLM copies the two parts between pages: whole."""
        return get_temporal_copy_spec, get_temporal_copy_spec

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Embed tokens [T] to [T, D]."""
        return self.model.embed_tokens(input_ids)

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: Any = None,  # noqa: ANN401, ARG002  vLLM's signature
        inputs_embeds: Tensor | None = None,
        **_: Any,  # noqa: ANN401  vLLM's signature
    ) -> Tensor:
        """Run one batch [T] of tokens; return hidden states [T, D]. Records what was computed."""
        assert inputs_embeds is None, "the decoder takes tokens"
        rows = len(input_ids)
        output = self.model.run(_padded(input_ids), self.mixer)
        runner = self._runner
        if runner is not None and get_forward_context().attn_metadata is not None:
            num_requests = runner.input_batch.num_reqs
            self.recorder.record(
                runner.input_batch.req_ids[:num_requests],
                runner.query_start_loc.np[: num_requests + 1].tolist(),
                positions.numpy(),
                output.expert_ids[:rows].numpy(),
            )
        return output.hidden[:rows]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Map hidden states [T, D] to logits [T, W]."""
        return self.lm_head(_padded(hidden_states))[: len(hidden_states)]

    def begin_recording(self, runner: "GPUModelRunner") -> None:
        """Record each forward from now on; `runner` knows which request a row belongs to."""
        self._runner = runner

    def policy_tensors(self) -> dict[str, Tensor]:
        """Return the live weights under their names in a checkpoint; overwrite them in place."""
        return dict(self.state_dict())

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint's tensors.

        Raises:
            ValueError: a tensor is unknown, missing or of another shape.
        """
        live = self.policy_tensors()
        loaded: set[str] = set()
        for name, tensor in weights:
            if name not in live or live[name].shape != tensor.shape:
                raise ValueError(f"checkpoint tensor {name} {tuple(tensor.shape)} does not fit")
            live[name].copy_(tensor)
            loaded.add(name)
        if missing := live.keys() - loaded:
            raise ValueError(f"checkpoint lacks {sorted(missing)[:3]}")
        return loaded


def _padded(rows: Tensor) -> Tensor:
    """Append zeros up to a multiple of ROW_STEP: a token's bits must not depend on its batch."""
    missing = -len(rows) % ROW_STEP
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
