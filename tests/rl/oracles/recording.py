"""Seeded cases that foreign packages answer, and the file that keeps their answers.

Each `record_*.py` beside this file runs in the virtual environment of one foreign package, where
neither this project nor its other packages are installed: numpy and the standard library must do.
`make oracles` runs those of packages. The tests read the files and need none of those packages.
Code that is on no package registry is read from a git checkout instead (`load`), whose commit is
kept in place of a version.

A file holds the versions, and for each case its inputs (rounded, so that they are exact in
decimal) and the results, all of them computed in float64.
"""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
COMMAND = "make oracles"
GROUPS = [0, 0, 0, 0, 1, 1, 1]
"""A group of four siblings and one of three."""
NOISE = 3.0
"""What a critic says of tokens that it was never trained on."""


def turns(seed, lengths=(6, 1, 4, 3)):
    """Trajectories of turns: rewards, values before each turn, what comes after the last one."""
    random = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    mask = np.arange(shape[1]) < np.array(lengths)[:, None]
    return {
        "lengths": list(lengths),
        "rewards": numbers(np.where(mask, random.normal(size=shape), 0.0)),
        "values": numbers(np.where(mask, random.normal(size=shape), 0.0)),
        "final_values": numbers(random.normal(size=len(lengths)) * (np.arange(len(lengths)) % 2)),
    }


def with_replies(inputs):
    """Lay turns out on tokens: one for each turn, and behind it one that was observed.

    Returns:
        Rewards, values and mask of the tokens, [I, 2H]; values off the mask are noise.
    """
    rewards, values = np.array(inputs["rewards"]), np.array(inputs["values"])
    is_turn = np.arange(rewards.shape[1]) < np.array(inputs["lengths"])[:, None]
    pairs = (
        (rewards, np.zeros_like(rewards)),
        (np.where(is_turn, values, NOISE), np.full_like(values, NOISE)),
        (is_turn.astype(np.float64), np.zeros_like(values)),
    )
    return tuple(np.stack(pair, axis=-1).reshape(len(rewards), -1) for pair in pairs)


def tokens(seed, rows=4, most=7, spread=0.5):
    """Log-probs of tokens under the policy and under what sampled them, masked, with advantages.

    The mask has holes, as where a tool replied; no row is empty, and their counts differ. Every
    trajectory has one advantage, and signs alternate.
    """
    random = np.random.default_rng(seed)
    shape = (rows, most)
    lengths = 2 + (np.arange(rows) * 2) % (most - 1)
    mask = (np.arange(most) < lengths[:, None]) & (random.random(shape) < 0.85)
    mask[:, 0] = True
    behavior = -0.1 - 3.0 * random.random(shape)
    policy = np.minimum(behavior + spread * random.normal(size=shape), -0.001)
    return {
        "mask": mask.astype(int).tolist(),
        "behavior_logprobs": numbers(behavior),
        "logprobs": numbers(policy),
        "advantages": numbers((-1.0) ** np.arange(rows) * (0.2 + random.random(rows))),
    }


def numbers(array):
    """Round to three decimals, as nested lists."""
    return np.round(np.asarray(array, dtype=np.float64), 3).tolist()


def load(checkout, name, stubs=()):
    """Load one module of a checkout from its file, without the packages around it.

    Args:
        checkout: Folder of the repository.
        name: Of the module, with dots; its folder must be reachable under the same name.
        stubs: `module:attribute` that the file imports and nothing asked here touches. Each is a
            bare object, so that what does touch it fails.
    """
    for stub in stubs:
        module, _, attribute = stub.partition(":")
        setattr(sys.modules.setdefault(module, types.ModuleType(module)), attribute, object())
    path = Path(checkout, *name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commit_of(checkout):
    """Return the commit that a checkout is at."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def record(name, packages, cases, commits=None):
    """Write the answers of a package to its file, and say what changed against the last time.

    Args:
        name: Of the file.
        packages: Distributions whose versions matter.
        cases: `{"inputs": ..., "results": ...}` by the name of the case, in lists and numbers.
        commits: Commits of the repositories that were asked, by address.
    """
    path = FOLDER / f"{name}.json"
    command = f"record_{name}.py CHECKOUT" if commits else COMMAND
    old = json.loads(path.read_text()) if path.exists() else {"packages": {}, "cases": {}}
    versions = (commits or {}) | {
        package: importlib.metadata.version(package).partition("+")[0] for package in packages
    }
    lines = ",\n".join(f"    {json.dumps(case)}: {json.dumps(cases[case])}" for case in cases)
    path.write_text(
        f'{{\n  "command": {json.dumps(command)},\n  "packages": {json.dumps(versions)},\n'
        f'  "cases": {{\n{lines}\n  }}\n}}\n'
    )
    new = json.loads(path.read_text())
    messages = [
        f"{package} {old['packages'].get(package, '(none)')} -> {version}"
        for package, version in versions.items()
        if old["packages"].get(package) != version
    ]
    for case in sorted({*old["cases"], *new["cases"]}):
        difference = compare(old["cases"].get(case), new["cases"].get(case))
        messages += [f"{case}: {difference}"] if difference else []
    for message in messages or [f"{len(cases)} cases, unchanged"]:
        sys.stdout.write(f"{name}: {message}\n")


def compare(old, new):
    """Say how two recordings of a case differ, or nothing."""
    if old is None or new is None:
        return "new" if old is None else "gone"
    if old["inputs"] != new["inputs"]:
        return "other inputs"
    before, after = flatten(old["results"]), flatten(new["results"])
    if len(before) != len(after):
        return "results of another shape"
    largest = max((distance(a, b) for a, b in zip(before, after, strict=True)), default=0.0)
    return f"changed by at most {largest:.3g}" if largest else ""


def distance(one, other):
    """Return the distance of two numbers, or of two words: 0 or infinity."""
    if isinstance(one, str) or isinstance(other, str):
        return 0.0 if one == other else float("inf")
    return abs(one - other)


def flatten(results):
    """List the numbers and words of nested results in order."""
    if isinstance(results, dict):
        return [number for key in sorted(results) for number in flatten(results[key])]
    if isinstance(results, list):
        return [number for each in results for number in flatten(each)]
    return [results]
