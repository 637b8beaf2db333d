"""One episode that a program plays: it asks the policy through the gateway, until it returns.

Takes a task and a gateway; returns a `Trajectory` with its outcome, as `agent_loop.run_episode`
does for environments whose tools we call.
"""

from collections.abc import Mapping

from envs.environment import EnvironmentFailure
from envs.episode import Episode, StopReason
from envs.messages import JsonValue
from envs.program import ProgramSpec, run_program
from rewards.reward import Blame, Invalid
from rollout.agent_loop import World, blame, grade
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.engine import Engine
from rollout.gateway import Gateway
from rollout.recorder import Recorder
from rollout.renderer import Renderer
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Segment, Trajectory
from rollout.transcript import Transcript


async def run_program_episode(
    attempt: Attempt,
    world: World,
    gateway: Gateway,
    engine: Engine,
    tokenizer: Tokenizer,
    config: RolloutConfig,
) -> Trajectory:
    """Let a program play one episode, and grade it.

    Args:
        attempt: The task and the seeds.
        world: The task's environment, a `ProgramSpec`, and its grader.
        gateway: Where the program finds the policy.
        engine: Samples; every session is closed, whatever happens.
        tokenizer: The policy's.
        config: Budgets. A program that fails after one was spent is not to blame: its episode ends
            there, without artifacts.

    Returns:
        The trajectory; its outcome is Invalid where the program or the grader failed.

    Raises:
        EngineError: the engine failed.
    """
    assert isinstance(world.spec, ProgramSpec)
    recorder = Recorder(attempt, engine, tokenizer, config)
    endpoint = gateway.open(recorder)
    artifacts: Mapping[str, JsonValue] = {}
    failure: Invalid | None = None
    try:
        artifacts = await run_program(world.spec, attempt.task, endpoint)
    except EnvironmentFailure as error:
        failure = blame(error)
    finally:
        gateway.close(endpoint)
        spent = recorder.stop
        await recorder.close()
    if recorder.engine_error is not None:
        raise recorder.engine_error
    if spent is StopReason.ABORTED:
        failure = Invalid(reason="aborted", blame=Blame.INFRASTRUCTURE, detail="sampling aborted")
    elif spent is not None:
        failure = None
    stop = spent or (StopReason.ENVIRONMENT_ERROR if failure else StopReason.FINISHED)
    episode = Episode(
        task=attempt.task,
        messages=tuple(recorder.messages),
        stop=stop,
        artifacts=artifacts,
        error=failure.detail if failure else None,
    )
    return Trajectory(
        id=attempt.id,
        episode=episode,
        segments=tuple(recorder.segments) or (_bare_segment(engine, tokenizer),),
        turns=tuple(recorder.turns),
        outcome=failure or await grade(world.grader, episode),
        computed_tokens=recorder.computed_tokens,
        publish_recomputed_tokens=recorder.publish_recomputed_tokens,
    )


def _bare_segment(engine: Engine, tokenizer: Tokenizer) -> Segment:
    """The segment of a program that never asked: the tokens of an empty opening."""
    transcript = Transcript()
    opening = Renderer(tokenizer, ()).render_opening("")
    transcript.append_pieces(opening, turn=0, policy_version=engine.version)
    return transcript.to_segment()
