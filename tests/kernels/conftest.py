"""Where Triton kernels run in a test: in the interpreter of their own process, or on a GPU.

Tests in files named `test_triton_*.py` carry the mark `interpreter` and take the fixture `device`.
`TRITON_INTERPRET=1 pytest -m interpreter` runs them on the CPU. The variable counts only when it is
set before Triton is imported, hence a process of its own; a test file must not set it, for that
would turn every other test's kernels into interpreted ones. With a CUDA device and without the
variable the same tests run compiled, on the device.
"""

import os

import pytest

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of Triton kernels, and skip them where nothing can run such kernels."""
    ours = [item for item in items if item.path.name.startswith("test_triton_")]
    if not ours:
        return
    import torch

    can_run = IS_INTERPRETED or torch.cuda.is_available()
    reason = "Triton kernels need a CUDA device, or TRITON_INTERPRET=1 from the start"
    for item in ours:
        item.add_marker(pytest.mark.interpreter)
        if not can_run:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def device() -> str:
    """Where a Triton test puts its tensors."""
    return "cpu" if IS_INTERPRETED else "cuda"


@pytest.fixture
def nan_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what torch hands out uninitialised with NaN, so that what a kernel forgets shows."""
    import torch

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    empty_like, new_empty = torch.empty_like, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: spoil(empty_like(*a, **k)))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: spoil(new_empty(*a, **k)))
