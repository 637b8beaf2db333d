"""Faults of vLLM 0.32 that we live with: each function names one, and what ends it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_applied: list[str] = []


def apply_workarounds() -> None:
    """Patch vLLM's model runner in this process. Idempotent."""
    if not _applied:
        copy_whole_pages()
        keep_seeds_through_chunked_prompts()
        seed_every_turn()
        _applied.append("all")


def copy_whole_pages() -> None:
    """Copy-on-write of a cache block copies too little in a hybrid model.

    `vllm.v1.worker.utils.copy_kv_cache_blocks_inplace` skips caches that start at an address it has
    seen. A KDA layer's view of a page starts where the attention layer's does and is shorter; it
    comes first, so the rest of the attention block stays stale. Largest views first mends it.
    Ends when the function compares extents, not addresses.
    """
    original = gpu_model_runner.copy_kv_cache_blocks_inplace  # pyright: ignore[reportPrivateImportUsage]

    def largest_first(caches: Iterable[torch.Tensor], num_blocks: int, copies: Any) -> None:  # noqa: ANN401  vLLM's type
        by_size = sorted(caches, key=lambda cache: -cache[0].numel() * cache.element_size())
        original(by_size, num_blocks, copies)

    gpu_model_runner.copy_kv_cache_blocks_inplace = largest_first  # pyright: ignore[reportPrivateImportUsage]


def keep_seeds_through_chunked_prompts() -> None:
    """A seeded request whose prompt takes two steps kills the engine on a CPU.

    `GPUModelRunner._bookkeeping_sync` rewinds the generator of a row whose sample is discarded with
    `Generator.set_offset`, which only CUDA generators have. Rows to be discarded are sampled from
    the global generator here, so that theirs need no rewinding. Ends when the runner rewinds CPU
    generators, or does not sample such rows.
    """
    for name in ("_sample", "_bookkeeping_sync"):
        setattr(GPUModelRunner, name, _without_discarded_seeds(getattr(GPUModelRunner, name)))


def seed_every_turn() -> None:
    """A resumed request keeps the generator of its first turn, whatever seed the next turn names.

    `GPUModelRunner._update_streaming_request` takes over the new sampling parameters but not their
    seed. Ends when it makes a generator from them.
    """
    original = GPUModelRunner._update_streaming_request

    @wraps(original)
    def seeded(runner: GPUModelRunner, req_id: str, new_req_data: Any) -> Any:  # noqa: ANN401  vLLM's types
        state = original(runner, req_id, new_req_data)
        parameters = new_req_data.sampling_params
        if parameters is not None and parameters.seed is not None:
            state.generator = torch.Generator().manual_seed(parameters.seed)
        return state

    GPUModelRunner._update_streaming_request = seeded  # pyright: ignore[reportAttributeAccessIssue]  names differ


def _without_discarded_seeds(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wrapped(runner: GPUModelRunner, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  passed on
        with _discarded_seeds_hidden(runner):
            return method(runner, *args, **kwargs)

    return wrapped


@contextmanager
def _discarded_seeds_hidden(runner: GPUModelRunner) -> Iterator[None]:
    batch = runner.input_batch
    rows = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist()
    hidden = {row: batch.generators.pop(row) for row in rows if row in batch.generators}
    try:
        yield
    finally:
        batch.generators.update(hidden)
