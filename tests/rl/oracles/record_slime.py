"""What slime answers: its two forms of GAE, which know no mask, with and without replies.

Usage: record_slime.py CHECKOUT, with torch installed. One file of the checkout is loaded, and
nothing is a stub. Only the estimators are asked. That slime updates critic and actor equally often
is a matter of its training loop: no function answers to it, and nothing is recorded.
"""

import sys

import numpy as np
import recording
import torch

ADDRESS = "https://github.com/THUDM/slime"
LAM, GAMMA = 0.8, 1.0
CHUNK = 4
"""Of the parallel form: fewer than there are tokens, so that it has borders to carry over."""


def cases(functions):
    """Yield every case by name. Behind the end, values are 0: slime pads with it."""
    inputs = recording.turns(seed=29)
    inputs["final_values"] = [0.0] * len(inputs["lengths"])
    inputs |= {"lam": LAM, "gamma": GAMMA, "noise": recording.NOISE}
    rewards, noisy, mask = recording.with_replies(inputs)
    written = mask * noisy
    following = np.pad(written, ((0, 0), (0, 1)))[:, 1:]
    # A reply is followed by a turn; what is behind the last turn is not of the response.
    is_reply = np.pad(mask, ((0, 0), (0, 1)))[:, 1:]
    turns = (np.array(inputs["rewards"]), np.array(inputs["values"]))
    for name, step, tokens in (
        ("no replies", 1, turns),
        ("replies with the value of the next turn", 2, (rewards, written + is_reply * following)),
        ("replies with noise for a value", 2, (rewards, written + is_reply * noisy)),
    ):
        lines = [torch.tensor(line) for line in tokens]
        answers = {
            "vanilla": functions.vanilla_gae(*lines, GAMMA, LAM),
            "chunked": functions.chunked_gae(*lines, GAMMA, LAM, CHUNK),
        }
        results = {way: advantages[:, ::step].tolist() for way, (advantages, _) in answers.items()}
        yield name, {"inputs": inputs, "results": results}


if __name__ == "__main__":
    CHECKOUT = sys.argv[1]
    FUNCTIONS = recording.load(CHECKOUT, "slime.utils.ppo_utils")
    COMMITS = {ADDRESS: recording.commit_of(CHECKOUT)}
    recording.record("slime", ["torch"], dict(cases(FUNCTIONS)), COMMITS)
