"""Dynamic sampling: groups that teach nothing make room for others (DAPO, arXiv 2503.14476).

Takes the groups of a step, returns as many or fewer. A group whose scored siblings all have the
same reward has advantage 0 everywhere under a baseline of its own mean. It is left out, and another
planned group is collected in its place, under the weights that are there now. That changes which
tasks are learned from and costs whole rollouts, so it is tried a bounded number of times; after
that, the step goes on with the groups it has.
"""

from collections.abc import Iterator, Sequence

from rl.collect import CollectGroup
from rl.group_buffer import PlannedGroup
from rollout.group_runner import gather
from rollout.trajectory import Group

MAX_ROUNDS = 3
"""Times that a step collects replacements."""


def is_equal(group: Group) -> bool:
    """Tell whether the scored siblings of a group all have the same reward, or there are none."""
    return len({m.reward for m in group.trajectories if m.reward is not None}) < 2


async def replace_equal_groups(
    planned: Sequence[PlannedGroup],
    groups: Sequence[Group],
    collect: CollectGroup,
    spares: Iterator[PlannedGroup],
) -> tuple[list[PlannedGroup], list[Group]]:
    """Leave out the groups whose rewards are equal, and collect others.

    Args:
        planned: What was planned for the step.
        groups: What came of it, in the same order.
        collect: Collects one group.
        spares: What to collect in the place of others, in order.

    Returns:
        Plan and groups that are left or were collected; all of the step's if every group that was
        seen is equal, so that a step of solved tasks still says so.
    """
    kept = [pair for pair in zip(planned, groups, strict=True) if not is_equal(pair[1])]
    for _ in range(MAX_ROUNDS):
        missing = len(planned) - len(kept)
        if not missing:
            break
        others = [spare for _, spare in zip(range(missing), spares, strict=False)]
        collected = await gather([collect(spare) for spare in others])
        kept += [pair for pair in zip(others, collected, strict=True) if not is_equal(pair[1])]
    if not kept:
        return list(planned), list(groups)
    return [plan for plan, _ in kept], [group for _, group in kept]
