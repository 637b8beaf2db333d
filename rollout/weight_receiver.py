"""The engine's side of a publish: vLLM's weight-transfer interface over a file in shared memory.

Takes the manifest that `rollout.weight_update.write_weights` made; leaves the live model with those
weights, copied in place, and the checksum read back from it. Importing the module registers the
transfer engine under `BACKEND`; that happens in vLLM's worker through `rollout.engine_worker`.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rollout.weight_update import PublishError, combine_checksums, tensor_checksum

BACKEND = "shm"
"""Name of this transfer engine in vLLM's `WeightTransferConfig`."""


@dataclass
class ReceiverInit(WeightTransferInitInfo):
    """Nothing to agree on: each update names its own file."""


@dataclass
class ReceiverUpdate(WeightTransferUpdateInfo):
    """What `WeightManifest.to_message` makes of a manifest."""

    path: str
    checksums: dict[str, str]


def verified_tensors(path: Path, checksums: dict[str, str]) -> dict[str, Tensor]:
    """Read a file of weights and compare each tensor with its checksum.

    Args:
        path: A safetensors file.
        checksums: Tensor name to `tensor_checksum`.

    Raises:
        PublishError: the file is missing, or its names or bytes are not the manifest's.
    """
    try:
        tensors = load_file(str(path))
    except Exception as error:
        raise PublishError(f"cannot read the published weights {path}: {error}") from error
    if tensors.keys() != checksums.keys():
        names = sorted(tensors.keys() ^ checksums.keys())
        raise PublishError(f"{path} and its manifest disagree on tensors: {names[:3]}")
    for name, tensor in tensors.items():
        if tensor_checksum(tensor) != checksums[name]:
            raise PublishError(f"{path}: tensor {name} does not match its checksum")
    return tensors


def copy_in_place(source: dict[str, Tensor], live: dict[str, Tensor]) -> None:
    """Overwrite live tensors; nothing is written unless everything fits.

    Args:
        source: Published tensors by name.
        live: The model's own tensors by name.

    Raises:
        PublishError: a tensor is missing, unknown, or of another shape.
    """
    if source.keys() != live.keys():
        names = sorted(source.keys() ^ live.keys())
        raise PublishError(f"published and live weights disagree on tensors: {names[:3]}")
    for name, tensor in source.items():
        if tensor.shape != live[name].shape:
            raise PublishError(
                f"published {name} is {tuple(tensor.shape)}, the live model's is "
                f"{tuple(live[name].shape)}"
            )
    with torch.no_grad():
        for name, tensor in source.items():
            live[name].copy_(tensor)


class WeightReceiver(WeightTransferEngine[ReceiverInit, ReceiverUpdate]):
    """Verifies a published file and copies it into the live model, between two engine steps."""

    init_info_cls = ReceiverInit
    update_info_cls = ReceiverUpdate
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: ReceiverInit) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Nothing to prepare: weights are copied in place."""

    def receive_weights(self, update_info: ReceiverUpdate) -> None:
        """Verify first, then copy: a bad file leaves the live weights as they are."""
        tensors = verified_tensors(Path(update_info.path), update_info.checksums)
        copy_in_place(tensors, self.model.policy_tensors())  # pyright: ignore[reportCallIssue]  the plugin's model class

    def finish_weight_update(self) -> None:
        """Nothing is derived from the weights."""

    def shutdown(self) -> None:
        """Nothing is held."""


def live_checksum(model: torch.nn.Module) -> str:
    """Checksum of what the live model holds now, comparable with `WeightManifest.checksum`."""
    tensors: dict[str, Tensor] = model.policy_tensors()  # pyright: ignore[reportCallIssue]  the plugin's model class
    return combine_checksums({name: tensor_checksum(tensor) for name, tensor in tensors.items()})


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, WeightReceiver)
