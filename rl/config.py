"""The whole configuration of a run: every section, and the checks that cross them."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envs.config import EnvironmentConfig
from rollout.config import RolloutConfig


class Section(BaseModel):
    """A frozen section that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class RunSection(Section):
    """What the run is called, how long it is, and where it is recorded."""

    name: str = Field(default="run", pattern=r"^[^/]+$")
    """Prefix of the run folder; without a slash."""
    folder: Path = Path("runs")
    """Run folders are made in here."""
    steps: int = Field(default=24, ge=1, le=100_000)
    """Optimizer updates; all their groups are planned ahead, hence the bound."""
    seed: int = Field(default=0, ge=0)
    """Every other seed derives from this one and from names."""


class ModelSection(Section):
    """Which weights the run starts from."""

    checkpoint: Path
    """Folder with config.json, model.safetensors and tokenizer.json."""
    preset: str = "tiny"
    """Shape that `limosa warm-start` builds when it makes the checkpoint."""


class CreditSection(Section):
    """From outcomes to advantages. What is not set is the preset's."""

    type: str = "rloo"
    """A preset (rl/presets.py: rloo, grpo, tb_gae_mix, ...), which also says which loss; or a rule
    of your own, a dotted path `package.module:function`."""
    group_size: int = Field(default=8, ge=1)
    """Siblings of a task."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups in a batch: episodes per step = groups_per_step * group_size."""
    baseline: str | None = None
    """What is expected before a turn: none, rloo, group_mean, batch_mean, state_group, critic."""
    temporal: str | None = None
    """How what came later counts: outcome, reward_to_go, gae."""
    lam: float | None = Field(default=None, ge=0, le=1)
    """lambda per turn of every gae term with a window (those whose preset has it below 1)."""
    lam_alpha: float | None = Field(default=None, gt=0)
    """Instead: lambda = 1 - 1/(lam_alpha * turns of the trajectory)."""
    gamma: float | None = Field(default=None, ge=0, le=1)
    """Discount per turn."""
    scale: str | None = None
    """Size of the advantages: none, group_std, batch_std, ema_rms."""
    turn_reward_weight: float = Field(default=0.0, ge=0)
    """Weight of the rewards that graders give to single turns, beside the outcome's of 1."""
    effort_folder: Path | None = None
    """Run folder of `limosa collect` with the policy that training begins with: what each task took
    there. None: effort has no budget."""
    effort_tau: float = Field(default=2.0, gt=0)
    """Times those tokens that the policy may write; beyond them the reward is -1."""
    budget_is_visible: bool = True
    """Whether the policy knows of its budgets of turns and tokens. If it does, an episode that they
    cut off is worth its reward; if not, what the critic expected of its rest."""


class LossSection(Section):
    """From advantages to a gradient. What is not set is the preset's of `credit.type`."""

    type: str | None = None
    """The trust region: ppo_clip, cispo, gspo, dis (or icepop), dppo_tv, decoupled; or a loss of
    your own, a dotted path `package.module:function`."""
    ratio_low: float | None = Field(default=None, ge=0, lt=1)
    """Lower bound of the ratio; no policy gradient at or below it (cispo: the least weight)."""
    ratio_high: float | None = Field(default=None, gt=1)
    """Upper bound of the ratio; no policy gradient at or above it (cispo: the most weight)."""
    tv_bound: float | None = Field(default=None, gt=0, le=1)
    """dppo_tv: a token's probability may move so far."""
    sampler_correction: Literal["none", "tis", "mis"] | None = None
    """The ratio of the learner's weights at the start of the step to the engine's: part of the
    region's ratio (none), or a factor beside it, cut off (tis) or masked (mis) at the cap."""
    sampler_cap: float | None = Field(default=None, ge=1)
    """Cap of that factor."""
    log_ratio_penalty: float | None = Field(default=None, ge=0)
    """Weight of the squared log-ratio, per token."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the divergence of the policy from what sampled the tokens."""
    kl_weight: float | None = Field(default=None, ge=0)
    """Weight of that divergence, per token."""
    aggregation: str | None = None
    """Tokens to one loss: token_mean, token_sum_const, seq_mean_token_mean, seq_mean_token_sum,
    prompt_mean."""


class CriticSection(Section):
    """The critic, where the preset needs one."""

    trunk: Literal["shared", "frozen", "copy"] = "shared"
    """What the value head reads: the policy's hidden states, which it leaves alone; those of the
    policy that the run began with, which do not move under it; or those of a copy of it that trains
    with the head."""
    loss: Literal["bce", "mse"] = "bce"
    """bce takes rewards in [0, 1] and keeps values there."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """AdamW's, of head and trunk; a copied trunk wants about the policy's own."""
    steps_per_update: int = Field(default=16, ge=1)
    """Critic steps in every step of the run; with a copied trunk each costs a pass over it."""
    pretrain_steps: int = Field(default=20, ge=0)
    """Steps of the run, at most, in which the critic alone is trained; it ends sooner, once the
    explained variance no longer rises."""
    pretrain_patience: int = Field(default=3, ge=1)
    """Steps without a new best explained variance after which pre-training ends."""


class DistillationSection(Section):
    """On-policy distillation: teachers reward single tokens, beside the outcome."""

    teachers: dict[str, Path] = {}
    """Checkpoint folder by the environment that tasks name; `*` for all that have none here."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of a teacher's log-ratio in the advantage of a token."""
    max_reward: float = Field(default=1.0, gt=0)
    """Bound of that log-ratio, nats."""


class LearnerSection(Section):
    """The optimizer and its batch."""

    learning_rate: float = Field(default=3e-4, gt=0)
    """AdamW's, constant after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Linear warm-up, in updates."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's first-moment decay."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's second-moment decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    max_batch_tokens: int = Field(default=8192, ge=64)
    """Tokens per forward and backward; gradients accumulate over the micro-batches of a step."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of the learner."""
    balance_experts: bool = False
    """Go on balancing the experts in every update; false: as the warm start left them."""


class PublishSection(Section):
    """How new weights reach the engines."""

    recompute_running: bool = False
    """Recompute the state of running conversations under the new weights."""
    probe_trajectories: int = Field(default=8, ge=1)
    """Recorded trajectories that learner and engine both score after every publish."""


class EvaluateSection(Section):
    """Held-out evaluation before and after training."""

    tasks_per_environment: int = Field(default=128, ge=1)
    """Held-out tasks of each environment; one attempt each."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of evaluation episodes."""
    every_steps: int = Field(default=0, ge=0)
    """Also evaluate every so many updates; 0: only before and after."""


class CheckpointSection(Section):
    """When weights are saved."""

    every_steps: int = Field(default=0, ge=0)
    """Save every so many updates; 0: only at the end."""


class WarmStartSection(Section):
    """Supervised training on the environments' own demonstrations."""

    demonstrations_per_environment: int = Field(default=6000, ge=1)
    """Episodes that the experts play in each environment."""
    epochs: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(3.0,), min_length=1)
    """Passes over the demonstrations in each cycle; a cycle restarts learning rate and AdamW."""
    batch_size: int = Field(default=32, ge=1)
    """Episodes per update."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """AdamW's peak, cosine to a tenth in every cycle."""
    threads: int = Field(default=2, ge=1)
    """CPU threads."""
    vocabulary_size: int = Field(default=1024, ge=300)
    """Tokens of the tokenizer trained on the demonstrations, special tokens included."""
    balance_experts: bool = True
    """Balance the experts in every update, so that all of them learn."""


class RunConfig(Section):
    """A run, whole. `limosa check FILE` validates it without importing torch."""

    run: RunSection = RunSection()
    model: ModelSection
    environments: dict[str, EnvironmentConfig] = Field(min_length=1)
    rollout: RolloutConfig = RolloutConfig()
    credit: CreditSection = CreditSection()
    loss: LossSection = LossSection()
    critic: CriticSection = CriticSection()
    distillation: DistillationSection = DistillationSection()
    learner: LearnerSection = LearnerSection()
    publish: PublishSection = PublishSection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    warm_start: WarmStartSection = WarmStartSection()

    @model_validator(mode="after")
    def episodes_fit_a_micro_batch(self) -> Self:
        """Each episode must fit into one forward of the learner."""
        if self.learner.max_batch_tokens < self.rollout.max_tokens:
            raise ValueError(
                f"learner.max_batch_tokens = {self.learner.max_batch_tokens} is below "
                f"rollout.max_tokens = {self.rollout.max_tokens}: raise the first or lower the "
                "second"
            )
        return self

    @model_validator(mode="after")
    def sampled_tokens_fit_the_episode(self) -> Self:
        """The sampling budget cannot exceed the episode's."""
        if self.rollout.max_sampled_tokens >= self.rollout.max_tokens:
            raise ValueError(
                f"rollout.max_sampled_tokens = {self.rollout.max_sampled_tokens} leaves no room "
                f"for the opening in rollout.max_tokens = {self.rollout.max_tokens}: lower the "
                "first or raise the second"
            )
        return self
