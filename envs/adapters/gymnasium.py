"""Gymnasium environments as text: one tool, `act`, whose argument is an action in words.

    [environments.lake]
    use = "envs.adapters.gymnasium:SPEC"
    options = { env_id = "FrozenLake-v1", actions = ["left", "down", "right", "up"] }

One episode (`>` is the policy):

    FrozenLake-v1. Actions: left, down, right, up
    {on red: S}FFF ...                                observation: 0
    > act(right)                                      S{on red: F}FF ...  observation: 1, reward: 0

An environment that renders as `ansi` is shown that way, colours in words; others show their
observation alone. The sum of the rewards is graded by `rewards/episode_return.py`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from envs.adapters.extra import require_package
from envs.environment import EnvironmentSpec, Split, ToolError
from envs.messages import JsonValue
from envs.task import Task
from envs.task_sets import split_of

if TYPE_CHECKING:
    from gymnasium.spaces import Space

COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURED = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", re.DOTALL)


class GymnasiumWorld:
    """One episode of any registered environment whose actions can be written as text."""

    def __init__(self) -> None:
        """Nothing is made before `reset`."""
        self._world: Any = None
        self._actions: list[str] = []
        self._return = 0.0
        self._num_steps = 0
        self._is_over = False

    def reset(self, env_id: str, seed: int, actions: list[str], settings: dict[str, Any]) -> str:
        """Make the environment and show its first state."""
        import gymnasium

        shown: dict[str, Any] = {"render_mode": "ansi"} if _renders_as_text(env_id) else {}
        # The passive checker only warns; what is wrong with an environment is `limosa check`'s job.
        self._world = gymnasium.make(env_id, disable_env_checker=True, **shown, **settings)
        self._actions = actions or _action_names(self._world.action_space)
        observation, _ = self._world.reset(seed=seed)
        choice = ", ".join(self._actions) or f"a value of {self._world.action_space}, as JSON"
        return f"{env_id}. Actions: {choice}\n{self._show(observation)}"

    def act(self, action: str) -> str:
        """Take one action.

        Args:
            action: One of the actions, by name; where they have no names, a value as JSON.
        """
        observation, reward, terminated, truncated, _ = self._world.step(self._parse(action))
        self._return += float(reward)
        self._num_steps += 1
        self._is_over = bool(terminated or truncated)
        return f"{self._show(observation)}, reward: {float(reward):g}"

    def done(self) -> bool:
        """Whether the environment terminated or was truncated."""
        return self._is_over

    def artifacts(self) -> dict[str, JsonValue]:
        """The sum of the rewards, the number of steps, and whether the episode came to its end."""
        return {"return": self._return, "steps": self._num_steps, "is_over": self._is_over}

    def close(self) -> None:
        """Free what the environment holds."""
        if self._world is not None:
            self._world.close()

    def _show(self, observation: object) -> str:
        shown = f"observation: {json.dumps(_to_json(observation))}"
        if self._world.render_mode != "ansi":
            return shown
        return f"{spell_colours(self._world.render()).strip()}\n{shown}"

    def _parse(self, text: str) -> object:
        """Turn what the policy wrote into a member of the action space."""
        from gymnasium import spaces

        space = self._world.action_space
        if isinstance(space, spaces.Discrete):
            if text.strip() not in self._actions:
                raise ToolError(f"no action {text[:40]!r}; there are: {', '.join(self._actions)}")
            return int(space.start) + self._actions.index(text.strip())
        action = text if isinstance(space, spaces.Text) else _from_json(space, text)
        if not space.contains(action):
            raise ToolError(f"{text[:40]!r} is no value of {space}")
        return action


def spell_colours(text: str) -> str:
    """Write terminal colours as words, for they carry meaning: `{on red: S}FFF`."""

    def spell(match: re.Match[str]) -> str:
        words = [
            f"{'on ' if code // 10 == 4 else ''}{COLOURS[code % 10]}"
            for code in map(int, match[1].split(";"))
            if code // 10 in (3, 4) and code % 10 < len(COLOURS)
        ]
        return f"{{{' '.join(words)}: {match[2]}}}"

    return _COLOURED.sub(spell, text)


def make_tasks(
    split: Split,
    *,
    env_id: str = "FrozenLake-v1",
    actions: Sequence[str] = (),
    num_tasks: int = 200,
    full_return: float = 1.0,
    settings: Mapping[str, Any] | None = None,
) -> Sequence[Task]:
    """Make the tasks of a split: one per seed.

    Args:
        split: Which part.
        env_id: As registered with Gymnasium.
        actions: Names for the actions of a discrete space, in order; their numbers where empty.
        num_tasks: Seeds of both splits together.
        full_return: The sum of rewards that scores 1; none or less scores 0.
        settings: Passed to the environment by `gymnasium.make`.

    Raises:
        ValueError: the package or the environment is missing, names and actions differ in number,
            or `full_return` is not positive.
    """
    require_package("gymnasium")
    import gymnasium

    if full_return <= 0:
        raise ValueError(f"full_return = {full_return:g} is not positive")
    try:
        world = gymnasium.make(env_id, disable_env_checker=True, **(settings or {}))
    except gymnasium.error.Error as error:
        raise ValueError(f"Gymnasium cannot make {env_id!r}: {error}") from None
    numbers = _action_names(world.action_space)
    world.close()
    if actions and len(actions) != len(numbers):
        raise ValueError(f"{env_id} has {len(numbers)} discrete actions, not {len(actions)}")
    data = {"env_id": env_id, "actions": list(actions), "settings": dict(settings or {})}
    ids = [f"gymnasium/{env_id}/{seed}" for seed in range(num_tasks)]
    return [
        Task(
            id=key,
            environment="envs.adapters.gymnasium:SPEC",
            grader="rewards.episode_return:grade",
            data={**data, "seed": seed},
            reference={"full_return": full_return},
            seed=seed,
        )
        for seed, key in enumerate(ids)
        if split_of(key) is split
    ]


@cache
def _renders_as_text(env_id: str) -> bool:
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    entry_point = gymnasium.spec(env_id).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return "ansi" in getattr(creator, "metadata", {}).get("render_modes", ())


def _action_names(space: object) -> list[str]:
    """Name the actions of a discrete space by their numbers; other spaces have no names."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Discrete):
        return []
    return [str(int(space.start) + index) for index in range(int(space.n))]


def _to_json(value: object) -> object:
    """Turn an observation into plain values."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_to_json(part) for part in value]
    to_list = getattr(value, "tolist", None)  # of an array, or of one of its scalars
    return to_list() if to_list else value


def _from_json(space: "Space[Any]", text: str) -> object:
    try:
        (action,) = space.from_jsonable([json.loads(text)])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ToolError(f"{text[:40]!r} is no value of {space}, as JSON") from None
    return action


SPEC = EnvironmentSpec(name="gymnasium", environment=GymnasiumWorld, tasks=make_tasks)
