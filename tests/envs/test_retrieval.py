"""The retrieval environment: questions, tools, expert, and how hard it is for a script."""

import random
import re

import pytest

from envs.check import check_environment
from envs.elements import load_elements
from envs.environment import Split, ToolError
from envs.play import play
from envs.retrieval import (
    MAX_PAGE_CHARACTERS,
    SPEC,
    Retrieval,
    cut_at_a_word,
    list_questions,
    load_index,
    make_expert,
    make_tasks,
    parse_question,
)

HELD_OUT = make_tasks(Split.HELD_OUT)
ALL = [*make_tasks(Split.TRAIN), *HELD_OUT]


def test_questions_are_unique_and_can_be_read_back():
    questions = list(list_questions())
    assert len({question.text for question in questions}) == len(questions)
    assert len({question.key for question in questions}) == len(questions)
    assert all(parse_question(question.text) == question for question in questions)
    with pytest.raises(ValueError, match="no question reads"):
        parse_question("gallium: why?")


def test_questions_read_as_they_should():
    texts = {question.key: question.text for question in list_questions()}
    assert texts["gallium-year"] == "gallium: in which year was it discovered?"
    assert texts["gallium-below-year"] == ("gallium, below: in which year was it discovered?")
    assert texts["gallium-left-symbol"] == "gallium, left: how is it abbreviated?"


def test_about_a_fifth_of_the_questions_have_one_hop():
    share = sum(question.direction is None for question in list_questions()) / len(ALL)
    assert 0.17 < share < 0.25


def test_the_page_of_every_answer_states_it_where_open_shows_it():
    for question in list_questions():
        relation, target = question.relation, question.target
        shown = cut_at_a_word(target.pages[relation.page].text)
        assert re.search(relation.pattern, shown).group(1) == target.facts[relation.fact]


def test_every_table_is_shown_whole():
    for element in load_elements().values():
        text = element.pages["table"].text
        assert cut_at_a_word(text) == text


def test_a_search_by_title_finds_every_page_first():
    for element in load_elements().values():
        for kind, page in element.pages.items():
            assert load_index().search(f"{element.name}: {kind}", 1)[0].title == page.title


def test_a_script_that_cites_the_first_hit_for_the_question_scores_little():
    solved = 0
    for task in HELD_OUT:
        first = load_index().search(task.data["question"], 1)[0]
        text = task.reference["documents"].get(first.title, "")
        solved += re.search(rf"\b{re.escape(task.reference['value'])}\b", text) is not None
    assert 0 < solved / len(HELD_OUT) <= 0.15


def test_a_long_page_is_cut_at_a_word():
    shown = cut_at_a_word("word " * 100)
    assert len(shown) <= MAX_PAGE_CHARACTERS
    assert shown.endswith("word ...")
    assert cut_at_a_word("short") == "short"


def test_the_tools_lead_from_a_search_to_an_answer():
    world = Retrieval()
    assert world.reset("who?") == "who?"
    with pytest.raises(ToolError, match="no hit 1"):
        world.open(1)
    assert world.search("gallium: history").startswith("1 gallium: history\n2 gallium: ")
    assert world.open(1).startswith("1875, France.")
    for hit in (0, 4, -1):
        with pytest.raises(ToolError, match="no hit"):
            world.open(hit)
    assert world.search("the") == "no page"
    assert not world.done()
    assert world.artifacts() == {}
    assert world.answer("1875", "gallium: history") == "answered"
    assert world.done()
    assert world.artifacts() == {"value": "1875", "document": "gallium: history"}


def test_an_empty_answer_ends_the_episode_too():
    world = Retrieval()
    world.reset("who?")
    world.answer("", "")
    assert world.done()


async def test_both_experts_find_the_fact_and_only_the_careful_one_cites_its_page():
    task = next(task for task in ALL if task.id == "retrieval/gallium-below-year")
    careful = await play(SPEC, task, make_expert(task, random.Random(0), careful_share=1.0))
    hasty = await play(SPEC, task, make_expert(task, random.Random(0), careful_share=0.0))
    assert careful.artifacts == {"value": "1863", "document": "indium: history"}
    assert hasty.artifacts == {"value": "1863", "document": "gallium: table"}


async def test_on_one_hop_both_experts_do_the_same():
    task = next(task for task in ALL if task.id == "retrieval/gallium-density")
    episodes = [
        await play(SPEC, task, make_expert(task, random.Random(0), careful_share=share))
        for share in (0.0, 1.0)
    ]
    assert episodes[0].messages == episodes[1].messages


async def test_an_expert_survives_a_page_without_the_fact():
    task = next(task for task in ALL if task.id == "retrieval/gold-right-year" or "gold" in task.id)
    episode = await play(SPEC, task, make_expert(task, random.Random(0), careful_share=0.0))
    assert set(episode.artifacts) == {"value", "document"}


async def test_the_environment_passes_its_check():
    assert await check_environment(SPEC, num_tasks=3) == []
