"""`limosa bench envs`: what worlds cost on this machine, played by the experts instead of a policy.

No model and no token: episodes, tools, sandboxes, graders and search alone. Environments whose data
is not on the machine are named with the reason, and left out.
"""

import asyncio
import contextlib
import os
import random
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from envs.config import EnvironmentConfig
from envs.corpora.boolq import load_boolq
from envs.corpora.foldoc import load_foldoc
from envs.elements import load_elements
from envs.environment import EnvironmentSpec, Split
from envs.episode import StopReason
from envs.play import play
from envs.registry import load_environment
from envs.retrieval import load_index
from envs.sandboxes.start_times import measure_start
from envs.search_index import Document, SearchIndex
from envs.task import Task
from envs.task_sets import list_tasks
from rewards.grading import grade_episode
from rewards.registry import load_grader
from rewards.reward import Scored
from rl.memory_watch import MemoryWatch

ENVIRONMENTS: Mapping[str, Mapping[str, int]] = {
    "code_tests": {},
    "retrieval": {},
    "code_repair": {"limit": 60},  # records: what is not known of them yet is found out first
    "encyclopedia": {"num_tasks": 60},
    "passages": {"num_tasks": 60},
    "fact_code": {"num_tasks": 60},
}
"""What is played, with the options of its tasks."""
MAX_TURNS = 40
TOOL_TIMEOUT_SECONDS = 60.0
"""In a crowd, a call waits for those before it."""
GRADER_TIMEOUT_SECONDS = 120.0
QUERY_WORDS = 6
NUM_HITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvsBenchPlan:
    """How much is measured."""

    environments: Sequence[str] = tuple(ENVIRONMENTS)
    num_episodes: int = 60
    """Of each environment."""
    num_starts: int = 20
    """Of sandboxes, cold and from a pool."""
    num_queries: int = 500
    num_parallel: int = 200
    """Episodes at once, of all environments in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A distribution of times, milliseconds."""

    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """Summarize times in seconds."""
        p50, p99 = np.percentile(seconds, [50, 99])
        return cls(p50_ms=1000 * float(p50), p99_ms=1000 * float(p99))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of some episodes."""

    episodes: int
    failures: int
    """The world, its sandbox or the grader failed, or the episode was not played to its end."""
    scores: Mapping[str, float]
    """By task, of the others. An expert may err on purpose, the same way each time."""
    seconds: float
    grading_seconds: Mapping[str, Sequence[float]]
    """Of each grading, by grader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvsBench:
    """The figures, named as in the JSON output."""

    cores: int
    """That this process may use."""
    episodes: int
    """Of each environment."""
    episodes_per_second_per_core: Mapping[str, float]
    """By environment, all cores busy."""
    failures: Mapping[str, int]
    """Episodes that failed, by environment."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Environments left out, with the reason."""
    grader: Mapping[str, Latency]
    """Time of one grading in that crowd, by grader."""
    sandbox_backend: str
    sandbox_cold_p50_ms: float
    """From nothing to a sandbox that answers."""
    sandbox_pooled_p50_ms: float
    """From a pool that has one ready."""
    sandbox_exec_p50_ms: float
    """The smallest program in a sandbox that lives."""
    search_corpus: str
    search_documents: int
    search: Latency
    """Time of one query of six words."""
    parallel_episodes: int
    """Episodes at once."""
    parallel_failures: int
    """Episodes that failed, or scored something else than with few at once."""
    parallel_seconds: float
    parallel_peak_mib: float
    """Resident memory of this process and of all below it, sandboxes too, at its highest."""


def bench_envs(
    plan: EnvsBenchPlan | None = None, announce: Callable[[str], object] = lambda _: None
) -> EnvsBench:
    """Measure everything, about two minutes on two cores.

    Args:
        plan: How much; the defaults of `EnvsBenchPlan` where None.
        announce: Told in a few words what comes next.

    Raises:
        ValueError: no environment of the plan has its data here.
        SandboxError: nothing on this machine confines programs.
    """
    return asyncio.run(_bench(plan or EnvsBenchPlan(), announce))


async def _bench(plan: EnvsBenchPlan, announce: Callable[[str], object]) -> EnvsBench:
    cores = len(os.sched_getaffinity(0))
    announce("sandboxes: starts, cold and from a pool")
    starts = await measure_start(plan.num_starts)
    worlds, skipped = _find_worlds(plan.environments)
    played: dict[str, Played] = {}
    for name, world in worlds.items():
        announce(f"{name}: {plan.num_episodes} episodes")
        await _play_all(world.take(cores), at_once=cores)  # what is made once per process
        played[name] = await _play_all(world.take(plan.num_episodes), at_once=2 * cores)
    announce("search")
    corpus = _find_largest_corpus()
    search = Latency.of(_time_searches(corpus, plan.num_queries))
    announce(f"{plan.num_parallel} episodes at once")
    share = -(-plan.num_parallel // len(worlds))
    crowd = [pair for world in worlds.values() for pair in world.take(share)][: plan.num_parallel]
    with MemoryWatch() as memory:
        parallel = await _play_all(crowd, at_once=plan.num_parallel)
    alone = ChainMap(*(dict(item.scores) for item in played.values()))
    changed = [key for key, score in parallel.scores.items() if alone.get(key, score) != score]
    return EnvsBench(
        cores=cores,
        episodes=plan.num_episodes,
        episodes_per_second_per_core={
            name: item.episodes / item.seconds / cores for name, item in played.items()
        },
        failures={name: item.failures for name, item in played.items()},
        skipped=skipped,
        grader=_grader_latencies(played.values()),
        sandbox_backend=starts.backend,
        sandbox_cold_p50_ms=starts.cold_p50_ms,
        sandbox_pooled_p50_ms=starts.pooled_p50_ms,
        sandbox_exec_p50_ms=starts.exec_p50_ms,
        search_corpus=corpus.name,
        search_documents=len(corpus.documents),
        search=search,
        parallel_episodes=parallel.episodes,
        parallel_failures=parallel.failures + len(changed),
        parallel_seconds=parallel.seconds,
        parallel_peak_mib=memory.peak_bytes / 2**20,
    )


@dataclass(frozen=True, slots=True)
class _World:
    """An environment with its training tasks and its expert."""

    spec: EnvironmentSpec
    tasks: Sequence[Task]

    def take(self, number: int) -> list[tuple[EnvironmentSpec, Task]]:
        """Take so many tasks, from the first on, and again where there are fewer."""
        return [(self.spec, self.tasks[index % len(self.tasks)]) for index in range(number)]


def _find_worlds(names: Sequence[str]) -> tuple[dict[str, _World], dict[str, str]]:
    """Find the environments that can be played here, and the reasons of the others.

    Raises:
        ValueError: there is none.
    """
    worlds, skipped = {}, {}
    for name in names:
        section = EnvironmentConfig(options=dict(ENVIRONMENTS[name]))
        try:
            spec = load_environment(name)
            worlds[name] = _World(spec, list_tasks(spec, section, Split.TRAIN))
        except ValueError as error:
            skipped[name] = str(error)
    if not worlds:
        raise ValueError(f"no environment can be played here: {skipped}")
    return worlds, skipped


async def _play_all(pairs: Sequence[tuple[EnvironmentSpec, Task]], at_once: int) -> Played:
    """Let the experts play episodes, and grade them."""
    slots = asyncio.Semaphore(at_once)
    grading: dict[str, list[float]] = {}
    scores: dict[str, float] = {}

    async def play_one(spec: EnvironmentSpec, task: Task) -> bool:
        assert spec.expert is not None
        async with slots:
            episode = await play(
                spec,
                task,
                spec.expert(task, random.Random(task.id)),
                max_turns=MAX_TURNS,
                tool_timeout_seconds=TOOL_TIMEOUT_SECONDS,
            )
            started = time.perf_counter()
            outcome = await grade_episode(load_grader(task.grader), episode, GRADER_TIMEOUT_SECONDS)
            grading.setdefault(task.grader, []).append(time.perf_counter() - started)
        if episode.stop is not StopReason.FINISHED or not isinstance(outcome, Scored):
            return False
        return scores.setdefault(task.id, outcome.value) == outcome.value

    started = time.perf_counter()
    went_well = await asyncio.gather(*(play_one(*pair) for pair in pairs))
    return Played(
        episodes=len(pairs),
        failures=went_well.count(False),
        scores=scores,
        seconds=time.perf_counter() - started,
        grading_seconds=grading,
    )


def _grader_latencies(played: Iterable[Played]) -> dict[str, Latency]:
    seconds: dict[str, list[float]] = {}
    for item in played:
        for grader, times in item.grading_seconds.items():
            seconds.setdefault(grader, []).extend(times)
    return {grader: Latency.of(times) for grader, times in seconds.items()}


@dataclass(frozen=True, slots=True)
class _Corpus:
    """Documents and their index."""

    name: str
    documents: Sequence[Document]
    index: SearchIndex


def _find_largest_corpus() -> _Corpus:
    """Find the largest corpus on this machine; that of `retrieval` is always there."""
    pages = [page for element in load_elements().values() for page in element.pages.values()]
    corpora = [_Corpus("elements", pages, load_index())]
    for name, load in (("foldoc", load_foldoc), ("boolq", lambda: load_boolq().dictionary)):
        with contextlib.suppress(ValueError):  # not installed, as its environment says above
            dictionary = load()
            articles = [Document(title=a.title, text=a.text) for a in dictionary.articles]
            corpora.append(_Corpus(name, articles, dictionary.index))
    return max(corpora, key=lambda corpus: len(corpus.documents))


def _time_searches(corpus: _Corpus, number: int) -> list[float]:
    """Search for words that stand in a document, in seconds each."""
    source = random.Random(0)
    seconds = []
    for _ in range(number):
        words = source.choice(corpus.documents).text.split()
        query = " ".join(source.sample(words, min(QUERY_WORDS, len(words))))
        started = time.perf_counter()
        corpus.index.search(query, NUM_HITS)
        seconds.append(time.perf_counter() - started)
    return seconds


def render(bench: EnvsBench) -> RenderableType:
    """Lay the figures out for a person, with their units."""
    worlds = Table("environment", "episodes/s per core", "failed", box=None, pad_edge=False)
    for name, rate in bench.episodes_per_second_per_core.items():
        worlds.add_row(name, f"{rate:.1f}", f"{bench.failures[name]} of {bench.episodes}")
    for name, reason in bench.skipped.items():
        worlds.add_row(name, "-", Text(reason, style="yellow"))
    times = Table("what takes how long", "p50, ms", "p99, ms", box=None, pad_edge=False)
    for name, latency in bench.grader.items():
        times.add_row(f"grader {name}", f"{latency.p50_ms:.1f}", f"{latency.p99_ms:.1f}")
    corpus = f"search in {bench.search_documents:,} documents ({bench.search_corpus})"
    times.add_row(corpus, f"{bench.search.p50_ms:.2f}", f"{bench.search.p99_ms:.2f}")
    backend = f"sandbox ({bench.sandbox_backend})"
    times.add_row(f"{backend}: cold start", f"{bench.sandbox_cold_p50_ms:.1f}", "")
    times.add_row(f"{backend}: from a pool", f"{bench.sandbox_pooled_p50_ms:.2f}", "")
    times.add_row(f"{backend}: a program", f"{bench.sandbox_exec_p50_ms:.1f}", "")
    crowd = (
        f"{bench.parallel_episodes} episodes at once on {bench.cores} cores: "
        f"{bench.parallel_failures} failed, {bench.parallel_seconds:.1f} s, "
        f"at most {bench.parallel_peak_mib:.0f} MiB with all sandboxes"
    )
    return Group(worlds, "", times, "", crowd)
