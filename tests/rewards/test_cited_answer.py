"""The grader of answers: right, and supported by the page that is cited."""

import re

import pytest

from envs.episode import Episode, StopReason
from envs.retrieval import cut_at_a_word, list_questions
from envs.task import Task
from rewards.cited_answer import grade, is_same_answer, is_stated


async def score(value, document, reference="1863", text="1863, Germany. Ferdinand Reich."):
    task = Task(
        id="retrieval/x",
        environment="retrieval",
        grader="cited_answer",
        reference={"value": reference, "documents": {"indium: history": text}},
    )
    artifacts = {} if value is None else {"value": value, "document": document}
    return await grade(
        Episode(task=task, messages=(), stop=StopReason.FINISHED, artifacts=artifacts)
    )


async def test_a_right_answer_with_its_page_scores_1():
    outcome = await score("1863", "indium: history")
    assert outcome.value == 1
    assert outcome.parts == {"value_right": 1, "citation_right": 1}


async def test_case_and_blanks_do_not_matter():
    assert (await score(" 1863 ", "Indium:  History")).value == 1
    united = {"reference": "United States", "text": "1940, United States. Corson."}
    assert (await score("united  states", "indium: history", **united)).value == 1


@pytest.mark.parametrize(
    ("value", "document"),
    [
        ("1864", "indium: history"),
        ("1863", "gallium: history"),
        ("1863", ""),
        ("", "indium: history"),
        ("1863 or 1864", "indium: history"),
        ("the answer is 1863", "indium: history"),
        (None, None),
    ],
)
async def test_a_wrong_half_scores_0(value, document):
    assert (await score(value, document)).value == 0


async def test_a_page_that_does_not_state_the_answer_is_no_support():
    outcome = await score("1863", "indium: history", text="Found in zinc ores, in 18634 places.")
    assert outcome.value == 0
    assert outcome.parts == {"value_right": 1, "citation_right": 0}


@pytest.mark.parametrize(
    ("value", "expected", "is_same"),
    [
        ("7.310", "7.31", True),
        ("13.0", "13", True),
        ("13", "13.5", False),
        ("1e3", "1000", False),
        ("nan", "nan", True),
        ("inf", "1000", False),
        ("9" * 400, "9", False),
        ("In", "in", True),
        ("", "0", False),
    ],
)
def test_numbers_compare_by_value_and_texts_by_letters(value, expected, is_same):
    assert is_same_answer(value, expected) is is_same


def test_a_value_is_stated_only_as_a_whole():
    assert is_stated("13", "group: 13. density")
    assert not is_stated("13", "in 1913")
    assert not is_stated("13", "density: 13.5.")
    assert not is_stated("5", "density: 13.5.")
    assert is_stated("13.5", "density: 13.5.")
    assert is_stated("Germany", "1863, germany. Reich")


def test_the_page_of_every_question_states_its_answer():
    for question in list_questions():
        relation, target = question.relation, question.target
        page = target.pages[relation.page]
        assert is_stated(target.facts[relation.fact], page.text)
        value = re.search(relation.pattern, cut_at_a_word(page.text)).group(1)
        assert is_same_answer(value, target.facts[relation.fact])
