"""vLLM's scheduler, able to recompute conversations that wait for their next turn."""

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus, StreamingUpdate


class SessionScheduler(Scheduler):
    """Drops the state of every conversation when asked to, not of the running ones alone.

    vLLM's `reset_prefix_cache(reset_running_requests=True)` preempts requests that run. A
    conversation between two turns holds its cache pages without running, and makes the reset fail.
    Here it gives its pages back and is computed from its first token at its next turn.
    """

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """See `Scheduler`; with `reset_running_requests` also resets waiting conversations."""
        if reset_running_requests:
            for request in list(self.kv_holding_waiting):
                self._drop_state(request)
        return super().reset_prefix_cache(reset_running_requests, reset_connector)

    def _drop_state(self, request: Request) -> None:
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            _keep_computed_tokens_only(request)
        self.kv_holding_waiting.remove_request(request)
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
        self.waiting.add_request(request)

    def _update_request_as_session(self, session: Request, update: StreamingUpdate) -> None:
        # The base class takes what was computed for the conversation so far; of a conversation
        # whose state was dropped that is everything, although nothing of it is cached.
        num_cached = session.num_computed_tokens
        if num_cached == 0:
            session.num_computed_tokens = session.num_tokens
        super()._update_request_as_session(session, update)
        session.num_computed_tokens = num_cached


def _keep_computed_tokens_only(session: Request) -> None:
    """Make the computed tokens the prompt; the last sampled one was never computed."""
    computed = session.num_computed_tokens
    outputs = session._all_token_ids[session.num_prompt_tokens : computed]
    del session._all_token_ids[computed:]
    session._output_token_ids.clear()
    assert session.prompt_token_ids is not None
    session.prompt_token_ids.extend(outputs)
    session.num_prompt_tokens = computed
