"""The checks find what is wrong with an environment, and nothing in a sound one."""

import random
import re
import sys
from pathlib import Path

import pytest

from envs.check import check_environment
from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Split, ToolError
from envs.messages import Message, Role, ToolCall
from envs.registry import load_environment
from envs.task import Task
from rewards.check import check_rewards
from rewards.reward import Blame, Invalid, Scored


class Echo:
    """Say the word."""

    opened = 0

    def reset(self, word):
        self.said = ""
        self.word = word
        return f"say {word}"

    def say(self, word: str) -> str:
        """Say a word.

        Args:
            word: The word.
        """
        self.said = word
        return "ok"

    def done(self):
        return bool(self.said)

    def artifacts(self):
        return {"said": self.said}


async def grade(episode):
    return Scored(value=float(episode.artifacts["said"] == episode.task.reference["word"]))


async def grade_all(episode):
    return Scored(value=1.0)


async def grade_none(episode):
    return Scored(value=0.0)


async def grade_badly(episode):
    return Invalid(reason="judge_down", blame=Blame.GRADER, detail="x")


async def raise_an_error(episode):
    raise KeyError("said")


def make_tasks(split, grader="grade", num=4, prefix=None):
    return [
        Task(
            id=f"{prefix or split}/{index}",
            environment="echo",
            grader=f"{__name__}:{grader}",
            data={"word": f"w{index}"},
            reference={"word": f"w{index}"},
        )
        for index in range(num)
    ]


def make_expert(task, source):
    def act(messages):
        word = messages[0].text.removeprefix("say ") if source.random() < 0.5 else "nothing"
        return Message(
            role=Role.POLICY, tool_calls=(ToolCall(name="say", arguments={"word": word}),)
        )

    return act


def make_spec(environment=Echo, tasks=make_tasks, expert=make_expert):
    return EnvironmentSpec(name="echo", environment=environment, tasks=tasks, expert=expert)


@pytest.fixture(autouse=True)
def graders_of_this_file(monkeypatch):
    monkeypatch.setattr("rewards.check.load_grader", lambda name: globals()[name.split(":")[1]])


async def find_rules(spec, options=None):
    section = EnvironmentConfig(options=options or {})
    return [failed.name for failed in await check_rewards(spec, section, num_tasks=2)]


async def test_a_sound_environment_passes_though_its_expert_fails_at_times():
    assert await find_rules(make_spec()) == []


@pytest.mark.parametrize(
    ("grader", "rule"),
    [
        ("grade_all", "empty"),
        ("grade_none", "gold"),
        ("grade_badly", "grader"),
        ("raise_an_error", "grader"),
    ],
)
async def test_an_unsound_grader_is_found(grader, rule):
    assert set(await find_rules(make_spec(), {"grader": grader})) == {rule}


async def test_tasks_that_are_not_there_are_found():
    assert await find_rules(make_spec(), {"num": 0}) == ["tasks"]


async def test_the_recipe_of_the_readme_is_a_sound_environment(tmp_path, monkeypatch):
    monkeypatch.undo()
    readme = (Path(__file__).parents[2] / "envs" / "README.md").read_text()
    recipe = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    (tmp_path / "guess.py").write_text(recipe)
    monkeypatch.delitem(sys.modules, "guess", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert await check_rewards(load_environment("guess:SPEC"), num_tasks=2) == []


async def test_a_task_in_both_splits_is_found():
    assert await find_rules(make_spec(), {"prefix": "same"}) == ["tasks"]


async def test_a_task_id_given_twice_is_found():
    def tasks(split):
        return make_tasks(split) * 2

    assert set(await find_rules(make_spec(tasks=tasks))) == {"tasks"}


async def test_an_unknown_option_is_found():
    assert await find_rules(make_spec(), {"zzz": 1}) == ["tasks"]


async def test_an_environment_that_breaks_is_found():
    class Broken(Echo):
        def say(self, word: str) -> str:
            """Say a word.

            Args:
                word: The word.
            """
            raise RuntimeError("hoarse")

    findings = await check_environment(make_spec(Broken), num_tasks=1)
    assert [finding.name for finding in findings] == ["plays"]
    assert "hoarse" in findings[0].details[0]


async def test_a_tool_that_raises_is_found_without_an_expert():
    class Broken(Echo):
        def shout(self, word: str, times: int = 2) -> str:
            """Say a word loudly.

            Args:
                word: The word.
                times: How often.
            """
            raise RuntimeError(f"hoarse after {times}")

    findings = await check_environment(make_spec(Broken, expert=None), num_tasks=1)
    assert [finding.name for finding in findings] == ["plays"]
    assert "called with {'word': 'example', 'times': 1}" in findings[0].details[0]
    assert "Broken.shout raised RuntimeError: hoarse after 1" in findings[0].details[0]


async def test_a_tool_that_refuses_a_senseless_call_is_sound():
    class Strict(Echo):
        def say(self, word: str) -> str:
            """Say a word.

            Args:
                word: The word.
            """
            raise ToolError("not this word")

    assert await check_environment(make_spec(Strict, expert=None), num_tasks=1) == []


async def test_an_environment_that_is_not_the_same_twice_is_found():
    class Moody(Echo):
        def reset(self, word):
            return super().reset(word) + str(random.random())

    class Forgetful(Echo):
        def say(self, word: str) -> str:
            """Say a word.

            Args:
                word: The word.
            """
            super().say(word)
            return str(random.random())

    assert set(await find_rules(make_spec(Moody))) == {"determinism"}
    assert set(await find_rules(make_spec(Forgetful))) == {"determinism"}


async def test_what_differs_is_named():
    class Dated(Echo):
        def artifacts(self):
            self.date = getattr(self, "date", "") or str(random.random())
            return {**super().artifacts(), "date": self.date}

    (failed,) = await check_rewards(make_spec(Dated), num_tasks=1)
    assert failed.name == "determinism"
    assert re.search(r"the artifact 'date' differs: '0\.\d+', then '0\.\d+'", failed.details[0])


async def test_tools_without_help_are_found():
    class Curt(Echo):
        def say(self, word: str) -> str:
            return super().say(word)

    assert await find_rules(make_spec(Curt)) == ["tools"]


async def test_an_environment_without_a_tool_is_found():
    class Deaf:
        def reset(self, word):
            return word

    assert await find_rules(make_spec(Deaf, expert=None)) == ["tools"]


@pytest.mark.parametrize("name", ["code_tests", "retrieval"])
async def test_our_environments_pass(name, monkeypatch):
    monkeypatch.undo()
    spec = load_environment(name)
    assert await check_rewards(spec, num_tasks=2) == []
    assert spec.tasks(Split.TRAIN)
