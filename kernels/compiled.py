"""Loops compiled by numba: once, and kept on disk.

Only a `cpu.py` uses this, and an op imports its `cpu.py` at the first call that needs it: vLLM
examines every module that is loaded when a worker starts, and trips over numba's
(`vllm.triton_utils.dispatcher._rebind_kernels`).
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

Loop = TypeVar("Loop", bound=Callable[..., object])

ASSUMED = frozenset({"contract", "nnan", "nsz"})
"""What the compiler may assume: a product and a sum may fuse, NaN and the sign of zero are of no
interest. Sums keep the order in which they are written: the bits of a row depend on that row."""


def compiled(loop: Loop) -> Loop:
    """Decorate a loop over numpy arrays and numbers; its first call compiles it.

    Where one loop calls another, the callee is inlined: an array is handed over as nine numbers,
    which measured took 40 % of the time of attention.

    The machine code lands beside the source in `__pycache__`, in the user's cache folder where the
    source is read-only, or in `NUMBA_CACHE_DIR`; the next process loads it in milliseconds. Where
    nothing can be written, a warning says that each process compiles anew.
    """
    from numba import njit

    dispatcher: Any = njit(fastmath=set(ASSUMED), error_model="numpy", forceinline=True)(loop)
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:
        log.warning("%s is compiled in each process anew: %s", loop.__qualname__, error)
    return dispatcher
