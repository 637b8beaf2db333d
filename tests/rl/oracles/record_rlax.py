"""What rlax answers: generalized advantages with lambda and discount per step."""

import jax
import numpy as np
import recording
import rlax

jax.config.update("jax_enable_x64", True)

WINDOWS = [(0.95, 1.0), (0.8, 0.9), (0.0, 0.9), (1.0, 1.0)]
"""lambda and gamma per turn."""
ALPHA = 1.5


def advantages(rewards, discounts, lambdas, values):
    """Answer one trajectory; values has one entry more than the others."""
    arrays = [np.asarray(each, dtype=np.float64) for each in (rewards, discounts, lambdas, values)]
    return np.asarray(rlax.truncated_generalized_advantage_estimation(*arrays)).tolist()


def trajectories(inputs):
    """Yield rewards, values and what comes after the last turn, without padding."""
    for length, rewards, values, after in zip(
        inputs["lengths"],
        inputs["rewards"],
        inputs["values"],
        inputs["final_values"],
        strict=True,
    ):
        yield np.array(rewards[:length]), np.array([*values[:length], after])


def turn_cases():
    """Turns as steps."""
    inputs = recording.turns(seed=0)
    for lam, gamma in WINDOWS:
        answer = [
            advantages(rewards, gamma * np.ones(len(rewards)), lam * np.ones(len(rewards)), values)
            for rewards, values in trajectories(inputs)
        ]
        targets = [
            np.asarray(
                rlax.lambda_returns(rewards, gamma * np.ones(len(rewards)), values[1:], lam)
            ).tolist()
            for rewards, values in trajectories(inputs)
        ]
        yield (
            f"turns, lambda {lam}, gamma {gamma}",
            {
                "inputs": {**inputs, "lam": lam, "gamma": gamma},
                "results": {"advantages": answer, "lambda_returns": targets},
            },
        )
    adaptive = [
        advantages(
            rewards,
            np.ones(len(rewards)),
            np.full(len(rewards), max(0.0, 1 - 1 / (ALPHA * len(rewards)))),
            values,
        )
        for rewards, values in trajectories(inputs)
    ]
    yield (
        "turns, length-adaptive",
        {"inputs": {**inputs, "alpha": ALPHA}, "results": {"advantages": adaptive}},
    )


def token_cases():
    """Tokens as steps: of the policy (P) and of what it observed (O)."""
    random = np.random.default_rng(1)
    inputs = {
        "turn_tokens": [3, 1, 4, 2],
        "observed_tokens": [0, 5, 2, 1],  # before each turn
        "rewards": recording.numbers(random.normal(size=4)),
        "values": recording.numbers(random.normal(size=4)),
        "final_value": 0.25,
        "token_values": [recording.numbers(random.normal(size=count)) for count in (3, 1, 4, 2)],
        "lam": 0.8,
        "gamma": 0.9,
    }
    boundary = at_turn_ends(inputs, [[v] * n for v, n in values_and_tokens(inputs)])
    own_values = at_turn_ends(inputs, inputs["token_values"])
    yield (
        "tokens",
        {
            "inputs": inputs,
            "results": {
                "decay at turn ends, a value per turn": boundary,
                "decay at turn ends, a value per token": own_values,
                "decay at every token": at_every_token(inputs),
                "a window that is a share of the tokens": over_written_tokens(inputs),
            },
        },
    )


def values_and_tokens(inputs):
    """Pair the value before each turn with the turn's tokens."""
    return zip(inputs["values"], inputs["turn_tokens"], strict=True)


def at_turn_ends(inputs, values):
    """Tokens of the policy alone; lambda and the discount are 1 inside a turn."""
    rewards, discounts, lambdas = [], [], []
    for reward, count in zip(inputs["rewards"], inputs["turn_tokens"], strict=True):
        rewards += [0.0] * (count - 1) + [reward]
        discounts += [1.0] * (count - 1) + [inputs["gamma"]]
        lambdas += [1.0] * (count - 1) + [inputs["lam"]]
    flat = [value for each in values for value in each]
    return advantages(rewards, discounts, lambdas, [*flat, inputs["final_value"]])


def at_every_token(inputs):
    """All tokens, what was observed too (valued as the turn that follows), one lambda for each."""
    rewards, values, is_policy = [], [], []
    for (value, count), observed, reward in zip(
        values_and_tokens(inputs), inputs["observed_tokens"], inputs["rewards"], strict=True
    ):
        rewards += [0.0] * (observed + count - 1) + [reward]
        values += [value] * (observed + count)
        is_policy += [False] * observed + [True] * count
    ones = np.ones(len(rewards))
    answer = advantages(
        rewards, inputs["gamma"] * ones, inputs["lam"] * ones, [*values, inputs["final_value"]]
    )
    return [number for number, wrote in zip(answer, is_policy, strict=True) if wrote]


def over_written_tokens(inputs):
    """Tokens of the policy alone, undiscounted, lambda length-adaptive in tokens."""
    total = sum(inputs["turn_tokens"])
    rewards, values = [], []
    for reward, (value, count) in zip(inputs["rewards"], values_and_tokens(inputs), strict=True):
        rewards += [0.0] * (count - 1) + [reward]
        values += [value] * count
    lambdas = np.full(total, 1 - 1 / (ALPHA * total))
    return advantages(rewards, np.ones(total), lambdas, [*values, inputs["final_value"]])


if __name__ == "__main__":
    recording.record("rlax", ["rlax", "jax"], dict([*turn_cases(), *token_cases()]))
