"""Publish: the learner's weights reach every engine, and every engine proves that they did.

Takes a learner and a collector; returns what it cost. Weights go through a file in shared memory;
each engine answers with a receipt that carries the checksum of what its live model then holds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rl.config import PublishSection
from rl.learner import Learner
from rollout.collector import Collector
from rollout.weight_update import PublishError, PublishReceipt, WeightManifest, write_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One finished publish."""

    version: int
    """Policy version that every engine now holds."""
    seconds: float
    """From the first byte written to the last acknowledgement."""
    total_bytes: int
    """Bytes of all tensors."""
    recomputed_sessions: int
    """Conversations whose state the engines compute anew under the new weights."""


async def publish(learner: Learner, collector: Collector, section: PublishSection) -> Publication:
    """Send the learner's current weights to all engines and check every answer.

    Running conversations go on: the engines take the weights between two of their steps.

    Args:
        learner: Its current version is sent.
        collector: With engines up.
        section: Whether running conversations are computed anew under the new weights.

    Raises:
        PublishError: shared memory is full, an engine did not take the weights, or it holds
            others than were sent.
    """
    started = time.monotonic()
    manifest = write_weights(learner.weights(), learner.version)
    try:
        receipts = await collector.publish(manifest, recompute_running=section.recompute_running)
    finally:
        manifest.remove()
    check_receipts(manifest, receipts, collector.num_engines)
    return Publication(
        version=manifest.version,
        seconds=time.monotonic() - started,
        total_bytes=manifest.total_bytes,
        recomputed_sessions=sum(receipt.recomputed_sessions for receipt in receipts),
    )


def check_receipts(
    manifest: WeightManifest, receipts: Sequence[PublishReceipt], num_engines: int
) -> None:
    """Hold every engine's answer against what was sent.

    Raises:
        PublishError: one line that names the engine and the difference.
    """
    if len(receipts) != num_engines:
        raise PublishError(
            f"policy version {manifest.version}: {len(receipts)} of {num_engines} engines answered"
        )
    for engine, receipt in enumerate(receipts):
        if receipt.version != manifest.version:
            raise PublishError(
                f"engine {engine} holds policy version {receipt.version}, "
                f"{manifest.version} was published"
            )
        if receipt.checksum != manifest.checksum:
            raise PublishError(
                f"engine {engine} holds weights with checksum {receipt.checksum}, "
                f"policy version {manifest.version} has {manifest.checksum}"
            )
