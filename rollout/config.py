"""The `rollout` section: engines, budgets of an episode, and how far collection may run ahead."""

from pydantic import BaseModel, ConfigDict, Field

from rewards.config import InvalidRule


class SubAgentConfig(BaseModel):
    """A tool `ask(question)` in every environment: the policy asks itself, and knows no more."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    trains: bool = False
    """Whether what a sub-agent writes gets the episode's credit; false: it is masked."""
    max_turns: int = Field(default=4, ge=1)
    """Its messages, at most; its budgets of tokens are the episode's."""
    tools: tuple[str, ...] = ()
    """Tools of an environment that it may call, where an environment has them."""


class RolloutConfig(BaseModel):
    """How trajectories are collected."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    ray_address: str = "local"
    """`local` starts Ray and ends it with the run; `auto` or `host:port` joins a cluster."""
    num_engines: int = Field(default=1, ge=1)
    """vLLM engines, each a Ray actor with the agent loops that use it."""
    max_lag: int = Field(default=1, ge=0)
    """Updates that a group's first token may be behind the learner; 0 is strictly on-policy."""
    max_concurrent_episodes: int = Field(default=64, ge=1)
    """Conversations in flight per engine."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training episodes."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample among the likeliest tokens, at most 256, that have this probability together, in
    training and in evaluation. Below 1 the learner leaves out the tokens that sampling left out."""
    max_turns: int = Field(default=6, ge=1)
    """Policy messages in an episode, at most."""
    max_tokens: int = Field(default=256, ge=8)
    """Tokens in a conversation, at most: opening, sampled and tool replies together."""
    max_sampled_tokens: int = Field(default=64, ge=1)
    """Tokens the policy may write in an episode, at most."""
    kv_cache_mib: int = Field(default=256, ge=16)
    """Memory for keys, values and recurrent states per engine, MiB."""
    max_batched_tokens: int = Field(default=2048, ge=64)
    """Tokens per engine step, at most."""
    engine_threads: int = Field(default=1, ge=1)
    """CPU threads per engine."""
    sub_agent: SubAgentConfig | None = None
    """A section `[rollout.sub_agent]` gives every environment the tool `ask`."""
    invalid: dict[str, InvalidRule] = {}
    """What becomes of episodes without a score, by reason, such as `sandbox_failed`; all other
    reasons are masked."""
    start_timeout_seconds: float = Field(default=240.0, gt=0)
    """Engines that are not up by then end the run with an error."""

    @property
    def max_conversations(self) -> int:
        """Conversations in flight per engine: an episode may wait for one sub-agent."""
        return self.max_concurrent_episodes * (1 if self.sub_agent is None else 2)
