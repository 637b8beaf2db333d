"""What torchrl answers: advantages where an episode ended (terminated) or was cut off (done)."""

import recording
import torch
from torchrl.objectives.value import functional

WINDOWS = [(0.95, 1.0), (0.8, 0.9)]
"""lambda and gamma per turn."""
GARBAGE = 7.0
"""What a critic says behind the end of an episode, where nothing follows."""


def lay_out(inputs):
    """Return values after each turn, and where trajectories stop and episodes end, [I, H, 1]."""
    following = torch.zeros(len(inputs["rewards"]), len(inputs["rewards"][0]))
    done = torch.zeros_like(following, dtype=torch.bool)
    terminated = done.clone()
    for row, length in enumerate(inputs["lengths"]):
        values = inputs["values"][row][1:length]
        after = inputs["final_values"][row] if inputs["is_cut"][row] else GARBAGE
        following[row, :length] = torch.tensor([*values, after], dtype=torch.float64)
        done[row, length - 1] = True
        terminated[row, length - 1] = not inputs["is_cut"][row]
    return following[..., None], done[..., None], terminated[..., None]


def cases():
    """Yield every case by name."""
    inputs = recording.turns(seed=2)
    inputs["is_cut"] = [value != 0.0 for value in inputs["final_values"]]
    following, done, terminated = lay_out(inputs)
    rewards = torch.tensor(inputs["rewards"], dtype=torch.float64)[..., None]
    values = torch.tensor(inputs["values"], dtype=torch.float64)[..., None]
    for lam, gamma in WINDOWS:
        split = (values, following, rewards, done, terminated)
        answers = {
            "gae": functional.generalized_advantage_estimate(gamma, lam, *split)[0],
            "vectorized gae": functional.vec_generalized_advantage_estimate(gamma, lam, *split)[0],
            "gae without terminated": functional.generalized_advantage_estimate(
                gamma, lam, *split[:-1]
            )[0],
            "td lambda returns": functional.td_lambda_return_estimate(
                gamma, lam, following, rewards, done, terminated
            ),
            "reward to go": functional.reward2go(rewards, done, gamma),
        }
        yield (
            f"lambda {lam}, gamma {gamma}",
            {
                "inputs": {**inputs, "lam": lam, "gamma": gamma},
                "results": {name: answer[..., 0].tolist() for name, answer in answers.items()},
            },
        )


if __name__ == "__main__":
    # Or what is computed from whole numbers and Python's floats would be float32.
    torch.set_default_dtype(torch.float64)
    recording.record("torchrl", ["torchrl", "torch"], dict(cases()))
