"""What RAGEN answers: its bi-level GAE, where turns have rewards and where they have none.

Usage: record_ragen.py CHECKOUT, with verl installed, on which RAGEN's estimators build. One file of
the checkout is loaded, and nothing is a stub. It computes in float32.

Its advantages are whitened at the end, its targets are not: recorded is the target minus the value,
the advantage as it was before. VAGEN had the same function; its main branch has it no more.
"""

import sys

import recording
import torch

ADDRESS = "https://github.com/mll-lab-nu/RAGEN"
LAM, TOKEN_GAMMA, TURN_GAMMA = 0.8, 1.0, 0.9


def rewarded(inputs, keep):
    """Return the inputs without the rewards of some turns.

    Args:
        inputs: Of the case where every turn has one.
        keep: Says of a turn and the length of its trajectory whether the reward stays.
    """
    rewards = [
        [reward if keep(turn, length) else 0.0 for turn, reward in enumerate(row)]
        for row, length in zip(inputs["rewards"], inputs["lengths"], strict=True)
    ]
    return inputs | {"rewards": rewards}


def cases(algorithms):
    """Yield every case by name: turns of one token, and replies between them."""
    inputs = recording.turns(seed=28)
    inputs["final_values"] = [0.0] * len(inputs["lengths"])
    inputs |= {"lam": LAM, "token_gamma": TOKEN_GAMMA, "turn_gamma": TURN_GAMMA}
    for name, keep in {
        "every turn rewarded": lambda turn, length: turn < length,
        "every other turn rewarded": lambda turn, length: turn < length and (length - turn) % 2,
        "an outcome alone": lambda turn, length: turn == length - 1,
        "no reward at the end": lambda turn, length: turn < length - 1,
        "no reward at all": lambda _turn, _length: False,
    }.items():
        case = rewarded(inputs, keep)
        yield name, {"inputs": case, "results": advantages_of(algorithms, case)}


def advantages_of(algorithms, inputs):
    """Ask for the advantages of the turns, or for the error."""
    rewards, values, mask = map(torch.tensor, recording.with_replies(inputs))
    try:
        _, targets = algorithms.compute_bi_level_gae_advantage_return(
            rewards, values, mask, TOKEN_GAMMA, LAM, TURN_GAMMA
        )
    except IndexError as error:
        return {"error": type(error).__name__}
    return {"advantages": ((targets - values) * mask)[:, 0::2].tolist()}


if __name__ == "__main__":
    CHECKOUT = sys.argv[1]
    ALGORITHMS = recording.load(CHECKOUT, "ragen.trainer.core_algos")
    COMMITS = {ADDRESS: recording.commit_of(CHECKOUT)}
    recording.record("ragen", ["verl", "torch"], dict(cases(ALGORITHMS)), COMMITS)
