"""Which implementation of an op runs: Triton on a GPU, compiled loops on a CPU, or the reference.

The choice depends on the tensors alone. Where the compiled loops cannot be had, the reference runs
and one warning says so.
"""

import logging
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Lane = Literal["triton", "cpu", "reference"]


def lane_of(x: Tensor) -> Lane:
    """Return the lane for a call on tensors like `x`.

    The compiled CPU loops are float32 only. The GPU kernels compute in float32, so that float64,
    the precision of specifications, runs the reference everywhere.
    """
    if x.device.type == "cuda" and x.dtype != torch.float64:
        return "triton"
    if x.device.type == "cpu" and x.dtype == torch.float32 and has_cpu_lane():
        return "cpu"
    return "reference"


@cache
def has_cpu_lane() -> bool:
    """Whether numba is installed; says once, as a warning, that the references run instead.

    It is looked for, not imported: vLLM examines every loaded module when a worker starts, and
    trips over numba's (`vllm.triton_utils.dispatcher._rebind_kernels`). A `cpu.py` imports it at
    its first call.
    """
    if find_spec("numba") is None:
        log.warning("numba is not installed: the references run instead of compiled CPU loops")
        return False
    return True
