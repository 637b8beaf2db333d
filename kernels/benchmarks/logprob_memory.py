"""Peak memory of `token_logprobs`, forward and backward, over that of the logits it avoids.

Measured from outside, so that what libraries allocate counts as well: the most memory that a
process of its own ever held (`VmHWM` of Linux), less what it held before, less the gradients of
hidden states and head, which any implementation returns.

    python -m kernels.benchmarks.logprob_memory
"""

import re
import subprocess
import sys
from pathlib import Path

import torch

from kernels.token_logprobs import token_logprobs

NUM_TOKENS = 4096
VOCABULARY = 160_000
WIDTH = 128
FLOAT_BYTES = 4
KIB = 1024


def token_logprobs_memory_share() -> float:
    """Return extra peak memory over the bytes of float32 logits [4096, 160000]; half a minute.

    Raises:
        RuntimeError: the process ended without a figure.
    """
    command = [sys.executable, "-m", "kernels.benchmarks.logprob_memory"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {finished.returncode}")
    return float(finished.stdout)


def extra_bytes(num_tokens: int, vocabulary: int, width: int) -> int:
    """Return what forward and backward take beyond inputs and their gradients.

    Only the first call in a process tells the truth: later ones find memory that earlier ones
    left, and a high-water mark that they set.
    """
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, width, generator=draw)
    head = torch.randn(vocabulary, width, generator=draw).mul_(width**-0.5)
    targets = torch.randint(vocabulary, (num_tokens,), generator=draw)
    _run(hidden[:1], head[:1], targets[:1] * 0)  # loads libraries
    before = _status("VmRSS")
    gradients = _run(hidden, head, targets)
    return _status("VmHWM") - before - sum(gradient.nbytes for gradient in gradients)


def _run(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    inputs = hidden.detach().requires_grad_(), head.detach().requires_grad_()
    logprobs, entropy = token_logprobs(*inputs, targets)
    return torch.autograd.grad(logprobs.sum() + entropy.sum(), inputs)


def _status(name: str) -> int:
    """Return a figure of this process, bytes."""
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"/proc/self/status does not say {name}: this is not Linux")
    return int(match.group(1)) * KIB


if __name__ == "__main__":
    torch.set_num_threads(1)
    share = extra_bytes(NUM_TOKENS, VOCABULARY, WIDTH) / (NUM_TOKENS * VOCABULARY * FLOAT_BYTES)
    sys.stdout.write(f"{share:.6f}\n")
