"""A published set of weights: a file in shared memory, a manifest that describes it, a receipt.

The learner calls `write_weights` and hands the manifest to every engine; each engine verifies the
file against the manifest, copies it into its live model in place, and answers with a receipt that
carries the checksum of what its live model then holds.
"""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")
"""Where weights are handed over: memory that every process of the machine can map."""


class PublishError(RuntimeError):
    """Weights did not arrive as they were sent; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """What a file of weights holds.

    Worked example:

        WeightManifest(version=3, path=Path("/dev/shm/limosa-3-9f2c.safetensors"),
                       checksums={"lm_head.weight": "5f0c..."}, total_bytes=4_812_288)

    Raises:
        ValueError: a negative version, or no tensor.
    """

    version: int
    """Policy version: updates behind these weights."""
    path: Path
    """A safetensors file."""
    checksums: Mapping[str, str]
    """Tensor name to `tensor_checksum`."""
    total_bytes: int
    """Bytes of all tensors."""

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"policy version {self.version} is negative")
        if not self.checksums:
            raise ValueError(f"policy version {self.version} has no tensor")

    @property
    def checksum(self) -> str:
        """One checksum for all tensors."""
        return combine_checksums(self.checksums)

    def to_message(self) -> dict[str, Any]:
        """Return what the receiver needs, as plain values that cross a process boundary."""
        return {"path": str(self.path), "checksums": dict(self.checksums)}

    def remove(self) -> None:
        """Delete the file, once every engine has answered. Idempotent."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReceipt:
    """An engine's answer to a publish."""

    version: int
    """Policy version that the engine now samples with."""
    checksum: str
    """Of the live model's tensors, read back after the copy: equals the manifest's."""
    total_bytes: int
    """Bytes copied into the live model."""
    seconds: float
    """Wall time from the request to the first step that could run again."""
    recomputed_sessions: int = 0
    """Conversations whose state is recomputed under the new weights."""


def tensor_checksum(tensor: "Tensor") -> str:
    """Hash a tensor's dtype, shape and bytes (BLAKE2b, 128 bits, hexadecimal)."""
    import torch

    values = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=16)
    digest.update(values.reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]  an array is a buffer
    return digest.hexdigest()


def combine_checksums(checksums: Mapping[str, str]) -> str:
    """Hash names and checksums of tensors, in the order of the names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(checksums):
        digest.update(f"{name}={checksums[name]}\n".encode())
    return digest.hexdigest()


def write_weights(
    tensors: Mapping[str, "Tensor"], version: int, folder: Path = SHARED_MEMORY
) -> WeightManifest:
    """Write weights where engines can read them.

    Args:
        tensors: Name to tensor, as in a checkpoint of the model, all of them.
        version: Policy version of the weights.
        folder: Where the file goes; shared memory unless engines run elsewhere.

    Raises:
        PublishError: the folder is missing or has no room.
    """
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    path = folder / f"limosa-{version}-{uuid.uuid4().hex[:8]}.safetensors"
    try:
        save_file(contiguous, str(path))
    except Exception as error:
        path.unlink(missing_ok=True)
        raise PublishError(f"cannot write weights to {folder}: {error}") from error
    return WeightManifest(
        version=version,
        path=path,
        checksums={name: tensor_checksum(tensor) for name, tensor in contiguous.items()},
        total_bytes=sum(tensor.nbytes for tensor in contiguous.values()),
    )
