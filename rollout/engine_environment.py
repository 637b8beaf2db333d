"""Environment variables that the inference engine needs, set before vLLM is imported.

Ray passes them to an engine's actor as `runtime_env["env_vars"]`; `VllmEngine.start` sets them for
its own process too, so that an engine outside Ray behaves alike.
"""

from kernels.rows import SAME_ROWS
from rollout.config import RolloutConfig


def engine_environment(config: RolloutConfig) -> dict[str, str]:
    """Build the variables that vLLM reads when it is imported and when it spawns its core.

    Args:
        config: The `rollout` section: threads per engine and the time a start may take.
    """
    return {
        # One process for scheduler, executor and model: with 1 there is a third process, which
        # pays the import of vLLM once more and gains nothing on one socket.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(config.start_timeout_seconds)),
        # Engines share the cores of the machine with each other and with the learner: binding
        # threads to cores would put them all on the same ones.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(config.engine_threads),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    } | SAME_ROWS
