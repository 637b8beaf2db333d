"""What every test runs under: offline, quiet, one thread each, and no luck with empty memory.

The environment variables are set before any heavy import, and processes that tests start inherit
them, so that this is the one place that says them.
"""

import os
import sys

import pytest
from hypothesis import settings

# How long an example takes says who else is on the machine.
settings.register_profile("limosa", deadline=None)
settings.load_profile("limosa")
os.environ |= {
    # Two cores are enough: one thread per process keeps tests that start engines from fighting.
    "OMP_NUM_THREADS": "1",
    # As in engines: the bits of a matrix product's row do not depend on the number of rows.
    "MKL_CBWR": "AUTO,STRICT",
    "TOKENIZERS_PARALLELISM": "false",
    # No model, data set or usage report goes over the network.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray renices its workers by 15 otherwise: on few cores they starve beside the test itself.
    "RAY_worker_niceness": "0",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu, with the reason shown, where no CUDA device is present."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fill what `torch.empty` returns with NaN in the tests of kernels and model.

    Fresh memory is often zero, which hides code that reads before it writes.
    """
    torch = sys.modules.get("torch")
    folder = request.path.parent.name
    is_own_process = not any(request.node.get_closest_marker(mark) for mark in ("vllm", "ray"))
    if torch is not None and folder in ("kernels", "model") and is_own_process:
        for name in ("empty", "empty_like"):
            monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))


def _poisoned(allocate):
    def allocate_nan(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        if tensor.is_floating_point():
            tensor.data.fill_(float("nan"))
        return tensor

    return allocate_nan
