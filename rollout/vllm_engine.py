"""The engine: vLLM, with one resumable request per conversation.

Takes tokens of a turn, returns sampled tokens with log-probs and policy versions. A conversation is
one request of vLLM that stays open between turns ("streaming input"): its latents and KDA states
stay in the cache, and a turn computes its new tokens only.
"""

import asyncio
import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import psutil
from jaxtyping import Float32

from model.checkpoint import CheckpointError, load_shape
from model.vllm_plugin.recording import CONVERSATION
from rollout.cache_plan import BLOCK_STEP, CachePlan, check_memory, context_tokens, plan_cache
from rollout.config import RolloutConfig
from rollout.engine import MAX_SUPPORT, EngineError, Generation, SamplingConfig, SessionReport
from rollout.engine_environment import engine_environment
from rollout.engine_log import output_to, startup_cause
from rollout.sampling_mask import SamplingMask
from rollout.vllm_sampling import read_logprobs, sampling_parameters
from rollout.weight_update import PublishError, PublishReceipt, WeightManifest

if TYPE_CHECKING:
    from vllm.engine.protocol import StreamingInput
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM


class VllmEngine:
    """An AsyncLLM of vLLM as an `Engine`. Made by `start`, ended by `shutdown`."""

    def __init__(self, llm: "AsyncLLM", config: RolloutConfig, version: int, log: Path) -> None:
        self._llm = llm
        self._config = config
        self._version = version
        self._vocabulary_size = llm.model_config.get_vocab_size()
        self._log = log
        self._seats = asyncio.Semaphore(config.max_conversations)
        self._sessions: set[VllmSession] = set()
        self._publishing = asyncio.Lock()
        self._ready = asyncio.Event()
        self._ready.set()
        manager: Any = llm.engine_core.resources.engine_manager  # pyright: ignore[reportAttributeAccessIssue]  vLLM's internals
        self._processes = [psutil.Process(process.pid) for process in manager.processes]

    @classmethod
    async def start(
        cls,
        checkpoint: Path | str,
        config: RolloutConfig,
        version: int = 0,
        log: Path | None = None,
        seed: int = 0,
    ) -> Self:
        """Start an engine process and wait until it serves.

        Args:
            checkpoint: Folder with config.json and model.safetensors.
            config: The `rollout` section.
            version: Policy version of the checkpoint.
            log: File for what vLLM writes; a temporary one if None.
            seed: Of everything that no turn's own seed decides.

        Raises:
            EngineError: no checkpoint, not enough memory or cache, or vLLM did not come up.
        """
        checkpoint = Path(checkpoint)
        try:
            plan = plan_cache(load_shape(checkpoint), config)
        except CheckpointError as error:
            raise EngineError(str(error)) from None
        check_memory(plan, config)
        if log is None:
            handle, name = tempfile.mkstemp(prefix="limosa-engine-", suffix=".log")
            os.close(handle)
            log = Path(name)
        os.environ.update(engine_environment(config))
        try:
            with output_to(log):
                llm = _start_vllm(checkpoint, config, plan, seed)
        except Exception as error:
            cause = startup_cause(log, error)
            raise EngineError(f"the engine did not start: {cause} (log: {log})") from None
        engine = cls(llm, config, version, log)
        try:
            await llm.collective_rpc("begin_recording")
            await llm.update_weight_version(str(version))
        except BaseException:
            await engine.shutdown()
            raise
        return engine

    @property
    def version(self) -> int:
        """Policy version of the weights held now."""
        return self._version

    @property
    def process_ids(self) -> list[int]:
        """Processes that the engine runs beside this one."""
        return [process.pid for process in self._processes]

    async def open(self, session_id: str) -> "VllmSession":
        """Start a conversation; waits while `max_conversations` are open.

        Args:
            session_id: For logs; conversations need not have different ones.
        """
        await self._seats.acquire()
        session = VllmSession(self, f"{CONVERSATION}{session_id}/{uuid.uuid4().hex[:8]}")
        self._sessions.add(session)
        return session

    async def score(self, token_ids: list[int]) -> Float32[np.ndarray, " T"]:
        """Log-probability (temperature 1) of each token given those before it; index 0 is 0.

        Raises:
            EngineError: the sequence is longer than an episode may be, or the engine died.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._check_length(len(token_ids), "a sequence to score")
        await self._ready.wait()
        parameters = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt: Any = {"prompt_token_ids": list(token_ids)}
        with self._engine_errors():
            outputs = self._llm.generate(prompt, parameters, f"score/{uuid.uuid4().hex}")
            output = [output async for output in outputs][-1]
        assert output.prompt_logprobs is not None
        scores = np.zeros(len(token_ids), dtype=np.float32)
        for index, token in enumerate(token_ids[1:], start=1):
            entry = output.prompt_logprobs[index]
            assert entry is not None
            scores[index] = entry[token].logprob
        return scores

    async def apply(
        self, manifest: WeightManifest, recompute_running: bool = False
    ) -> PublishReceipt:
        """Take new weights between two steps; no conversation is aborted.

        Conversations keep their state: what they sample from now on comes from the new weights over
        a past computed with the old ones, and carries the new version.

        Args:
            manifest: What `write_weights` wrote.
            recompute_running: Compute every open conversation's state again with the new weights.

        Raises:
            PublishError: the weights are not what the manifest says; the old ones stay.
            EngineError: the engine died.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with self._publishing:
            start = time.monotonic()
            self._ready.clear()
            try:
                await self._llm.pause_generation(mode="keep", clear_cache=False)
                await self._llm.start_weight_update()
                update = WeightTransferUpdateRequest(update_info=manifest.to_message())
                await self._llm.update_weights(update)
                await self._llm.finish_weight_update(weight_version=str(manifest.version))
                self._version = manifest.version
                recomputed = await self._drop_state() if recompute_running else 0
                (checksum,) = await self._llm.collective_rpc("live_checksum")
            except Exception as error:
                raise self._publish_error(manifest, error) from error
            finally:
                if not self._llm.errored:
                    await self._llm.resume_generation()
                self._ready.set()
            if checksum != manifest.checksum:
                raise PublishError(
                    f"policy version {manifest.version}: the live weights' checksum {checksum} is "
                    f"not the published {manifest.checksum}"
                )
            return PublishReceipt(
                version=manifest.version,
                checksum=checksum,
                total_bytes=manifest.total_bytes,
                seconds=time.monotonic() - start,
                recomputed_sessions=recomputed,
            )

    async def shutdown(self) -> None:
        """End the engine and its processes. Idempotent."""
        # A core that is asked to end takes seconds to unload its libraries, and holds nothing.
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._llm.shutdown()
        # AsyncLLM shuts down once more when it is collected, which at the interpreter's end fails.
        self._llm.shutdown = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
        await asyncio.to_thread(psutil.wait_procs, self._processes, 5.0)

    async def _drop_state(self) -> int:
        await self._llm.collective_rpc("expect_recomputation")
        await self._llm.reset_prefix_cache(reset_running_requests=True)
        return len(self._sessions)

    def _publish_error(self, manifest: WeightManifest, error: Exception) -> Exception:
        if self._llm.errored:
            return EngineError(f"the engine died during a publish (log: {self._log})")
        return PublishError(f"policy version {manifest.version} was not taken: {error}")

    def _check_length(self, num_tokens: int, what: str) -> None:
        if num_tokens > self._config.max_tokens:
            raise EngineError(
                f"{what} has {num_tokens} tokens, above rollout.max_tokens = "
                f"{self._config.max_tokens}: raise it or shorten the episode"
            )

    @contextlib.contextmanager
    def _engine_errors(self) -> Iterator[None]:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            yield
        except (EngineDeadError, EngineGenerateError) as error:
            raise EngineError(f"the engine failed: {error!r} (log: {self._log})") from error

    async def _take_report(self, name: str) -> SessionReport:
        (record,) = await self._llm.collective_rpc("take_conversation", args=(name,))
        if record is None:
            return SessionReport(expert_ids=None, computed_tokens=0)
        rows, shape, computed, recomputed = record
        return SessionReport(
            expert_ids=np.frombuffer(rows, dtype=np.int16).reshape(shape),
            computed_tokens=computed,
            publish_recomputed_tokens=recomputed,
        )


class VllmSession:
    """One conversation of a `VllmEngine`; see `Session`."""

    def __init__(self, engine: VllmEngine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._inputs: asyncio.Queue[StreamingInput | None] = asyncio.Queue()
        self._outputs: AsyncIterator[RequestOutput] | None = None
        self._unsent: list[int] = []
        """The last sampled token: vLLM samples it but does not compute it, and drops it when the
        conversation goes on. It is sent again as the first token of the next turn."""
        self._num_tokens = 0
        self._num_sampled = 0
        self._report: SessionReport | None = None

    async def extend(self, token_ids: list[int], sampling: SamplingConfig) -> Generation:
        """Append `token_ids` to the conversation and sample a turn after them.

        Raises:
            EngineError: the conversation is closed or would exceed `max_tokens`, or the engine
                died.
        """
        engine = self._engine
        if self._report is not None:
            raise EngineError(f"{self._name} is closed")
        self._num_tokens += len(token_ids)
        engine._check_length(self._num_tokens + sampling.max_tokens, self._name)
        await engine._ready.wait()
        prompt_version = engine.version
        parameters = sampling_parameters(sampling, engine._vocabulary_size)
        self._send([*self._unsent, *token_ids], parameters)
        tokens: list[int] = []
        logprobs: list[float] = []
        supports: list[list[int]] = []
        with engine._engine_errors():
            while True:
                output = await anext(self._receive(parameters), None)
                if output is None:
                    raise EngineError(f"{self._name} was ended by an earlier failure")
                completion = output.outputs[0]
                tokens.extend(completion.token_ids)
                for chosen, support in read_logprobs(completion):
                    logprobs.append(chosen)
                    supports.append(support)
                if completion.finish_reason is not None:
                    break
        versions = np.zeros(len(tokens), dtype=np.int32)
        for span in completion.weight_versions or ():
            # vLLM counts a request's tokens through all its turns.
            start, stop = (max(0, at - self._num_sampled) for at in (span.start, span.end))
            versions[start:stop] = int(span.version)
        self._unsent = tokens[-1:]
        self._num_tokens += len(tokens)
        self._num_sampled += len(tokens)
        return Generation(
            token_ids=np.array(tokens, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            versions=versions,
            sampling_mask=SamplingMask.of_lists(supports) if sampling.top_p < 1.0 else None,
            finish=completion.finish_reason,
            prompt_version=prompt_version,
        )

    async def close(self) -> SessionReport:
        """End the conversation and free its state. Idempotent."""
        if self._report is None:
            engine = self._engine
            self._report = SessionReport(expert_ids=None, computed_tokens=0)
            engine._sessions.discard(self)
            engine._seats.release()
            if self._outputs is not None:
                self._inputs.put_nowait(None)
                with engine._engine_errors():
                    async for _ in self._outputs:
                        pass
                    self._report = await engine._take_report(self._name)
        return self._report

    def _send(self, token_ids: list[int], parameters: "SamplingParams") -> None:
        from vllm.engine.protocol import StreamingInput

        prompt: Any = {"prompt_token_ids": token_ids}
        self._inputs.put_nowait(StreamingInput(prompt=prompt, sampling_params=parameters))

    def _receive(self, parameters: "SamplingParams") -> "AsyncIterator[RequestOutput]":
        if self._outputs is None:
            llm = self._engine._llm
            self._outputs = llm.generate(self._turns(), parameters, self._name)
        return self._outputs

    async def _turns(self) -> "AsyncGenerator[StreamingInput, None]":
        while (turn := await self._inputs.get()) is not None:
            yield turn


def _start_vllm(checkpoint: Path, config: RolloutConfig, plan: CachePlan, seed: int) -> "AsyncLLM":
    from vllm import ModelRegistry
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from model.vllm_plugin import ARCHITECTURE, register
    from model.vllm_plugin.decoder import VllmDecoder
    from rollout.weight_receiver import BACKEND

    # The class itself: vLLM examines a class that it knows by name only in a process of its own,
    # which takes as long as starting an engine.
    register()
    ModelRegistry.register_model(ARCHITECTURE, VllmDecoder)
    arguments = AsyncEngineArgs(
        model=str(checkpoint),
        dtype="float32",
        seed=seed,
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=context_tokens(config),
        max_num_seqs=plan.num_requests,
        max_num_batched_tokens=config.max_batched_tokens,
        block_size=BLOCK_STEP,
        kv_cache_memory_bytes=config.kv_cache_mib << 20,
        logprobs_mode="processed_logprobs",
        max_logprobs=MAX_SUPPORT,
        disable_log_stats=True,
        scheduler_cls="model.vllm_plugin.session_scheduler.SessionScheduler",
        worker_extension_cls="rollout.engine_worker.EngineWorker",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
    )
    return AsyncLLM.from_engine_args(arguments)
