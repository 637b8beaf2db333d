"""Methods that `VllmEngine` calls inside vLLM's worker process, by name.

vLLM mixes the class into its own worker (`worker_extension_cls`), so `self.model_runner` is the
worker's. Importing the module registers the weight receiver in the worker.
"""

import os
import threading
import time
from typing import TYPE_CHECKING

from rollout import weight_receiver

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from model.vllm_plugin.decoder import VllmDecoder

PARENT_POLL_SECONDS = 1.0
"""How often the worker looks whether the process that started it still lives."""


class EngineWorker:
    """What the engine's front asks of its worker. Arguments and results are plain values."""

    if TYPE_CHECKING:
        model_runner: GPUModelRunner

    def _decoder(self) -> "VllmDecoder":
        return self.model_runner.model  # pyright: ignore[reportReturnType]  what vLLM loaded

    def begin_recording(self) -> None:
        """Record what is computed from now on, and end this process if its parent is killed."""
        self._decoder().begin_recording(self.model_runner)
        threading.Thread(
            target=_exit_with_parent, args=(os.getppid(),), name="exit-with-parent", daemon=True
        ).start()

    def take_conversation(self, name: str) -> tuple[bytes, list[int], int, int] | None:
        """Hand out what was recorded for a conversation, and forget it.

        Returns:
            Bytes of the expert ids (int16), their shape [T, L, A], computed tokens, and tokens
            recomputed because of a publish; None if nothing was computed.
        """
        record = self._decoder().recorder.take(name)
        if record is None:
            return None
        shape = list(record.expert_ids.shape)
        return (
            record.expert_ids.tobytes(),
            shape,
            record.computed_tokens,
            record.publish_recomputed_tokens,
        )

    def expect_recomputation(self) -> None:
        """A publish is about to drop every conversation's state."""
        self._decoder().recorder.expect_recomputation()

    def live_checksum(self) -> str:
        """Checksum of the weights that the live model holds."""
        return weight_receiver.live_checksum(self._decoder())


def _exit_with_parent(parent: int) -> None:
    # vLLM ends its core when it is asked to; when the asking process is killed, nobody asks.
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)
