"""The encyclopedia: walks, tools, and episodes as long as one asks for."""

import random

import pytest

from envs.corpora.walks import draw_walks
from envs.encyclopedia import SPEC, Encyclopedia, make_expert, make_tasks
from envs.environment import Split, ToolError
from envs.play import play
from rewards.cited_support import grade


def count_tokens(episode):
    """Roughly: four characters are a token."""
    return sum(len(message.text) for message in episode.messages) / 4


def test_a_walk_follows_the_references_that_it_names(dictionary):
    for walk in draw_walks(dictionary, 3, 20):
        assert len({article.title for article in walk.articles}) == 4
        for number, article, target in zip(
            walk.references, walk.articles, walk.articles[1:], strict=False
        ):
            assert dictionary.find(article.references[number - 1]) is target
        assert walk.date == walk.articles[-1].date
        assert walk.date is not None


def test_the_clues_single_out_the_first_article_and_a_search_finds_it(dictionary):
    for walk in draw_walks(dictionary, 1, 20):
        first = walk.articles[0]
        owners = [a for a in dictionary.articles if set(walk.clues) <= set(a.references)]
        assert owners == [first]
        hits = dictionary.index.search(" ".join(walk.clues), 8)
        assert first.title in {hit.title for hit in hits}
        assert first.title not in walk.directions.split()


def test_walks_are_the_same_each_time_and_no_two_are_the_same(dictionary):
    keys = [walk.key for walk in draw_walks(dictionary, 2, 30)]
    assert keys == [walk.key for walk in draw_walks(dictionary, 2, 30)]
    assert len(set(keys)) == 30


def test_walks_that_the_dictionary_does_not_have_are_refused(dictionary):
    with pytest.raises(ValueError, match="0 walks of 200 hops, not 1"):
        list(draw_walks(dictionary, 200, 1))


def test_the_splits_share_no_task_and_data_hold_no_answer(dictionary):
    train, held_out = (make_tasks(split, num_tasks=60) for split in Split)
    assert len(train) + len(held_out) == 60
    assert not {task.id for task in train} & {task.id for task in held_out}
    for task in train:
        assert task.reference["value"] not in str(task.data)


@pytest.mark.parametrize("options", [{"hops": -1}, {"num_tasks": 0}, {"page_characters": 5}])
def test_numbers_that_make_no_sense_are_refused(dictionary, options):
    with pytest.raises(ValueError, match="are needed"):
        make_tasks(Split.TRAIN, **options)


def test_the_tools_lead_from_a_search_to_an_answer(dictionary):
    world = Encyclopedia()
    assert world.reset("who?", dictionary.digest, 300) == "who?"
    with pytest.raises(ToolError, match="no page is open"):
        world.find_in_page("term7")
    assert world.search("alias term7").split("\n")[0] == "term7"
    page = world.open("term7")
    assert page.startswith("term7\nalias of term7")
    assert len(page) == 300
    assert "word7" in world.find_in_page("WORD7")
    assert world.find_in_page("zebra") == "not on this page"
    assert not world.done()
    assert world.artifacts() == {}
    world.answer("2000-01-01", ["term7"])
    assert world.done()
    assert world.artifacts() == {"value": "2000-01-01", "documents": ["term7"]}


def test_a_long_article_has_pages_and_the_last_goes_on_with_the_next_article(dictionary):
    world = Encyclopedia()
    world.reset("who?", dictionary.digest, 150)
    whole = dictionary.find("term7").text
    num_pages = -(-len(whole) // 150)
    assert num_pages > 1
    read = "".join(world.open("term7", page) for page in range(1, num_pages + 1))
    assert read.startswith(whole)
    for page in (0, num_pages + 1):
        with pytest.raises(ToolError, match=f"has pages 1 to {num_pages}"):
            world.open("term7", page)
    with pytest.raises(ToolError, match="no article 'term700'"):
        world.open("term700")


def test_another_dictionary_than_the_tasks_is_refused(dictionary):
    with pytest.raises(ValueError, match="made from dictionary abc"):
        Encyclopedia().reset("who?", "abc", 300)


async def test_the_expert_proves_its_answer_within_six_turns(dictionary):
    for task in make_tasks(Split.HELD_OUT, num_tasks=60)[:5]:
        episode = await play(SPEC, task, make_expert(task, random.Random(0)))
        assert (await grade(episode)).value == 1.0


@pytest.mark.parametrize(
    ("hops", "page_characters", "num_tokens"),
    [(8, 5_000, 10_000), (25, 16_000, 100_000), (62, 64_000, 1_000_000)],
)
async def test_an_episode_is_as_long_as_its_parameters_say(
    dictionary, hops, page_characters, num_tokens
):
    """The small dictionary is written again and again until pages of that length are full."""
    dictionary.text = dictionary.text * 40
    tasks = make_tasks(Split.TRAIN, hops=hops, page_characters=page_characters, num_tasks=4)
    episode = await play(
        SPEC,
        tasks[0],
        make_expert(tasks[0], random.Random(0)),
        max_turns=hops + 3,
        max_tool_characters=page_characters,
    )
    assert num_tokens < count_tokens(episode) < 1.3 * num_tokens
    assert (await grade(episode)).value == 1.0
