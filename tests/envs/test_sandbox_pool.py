"""Sandboxes started ahead of time."""

import pytest

from envs.sandboxes import pool as pools
from envs.sandboxes.bubblewrap import BACKEND
from envs.sandboxes.lease import list_leases
from envs.sandboxes.pool import SandboxPool
from envs.sandboxes.protocol import SandboxError
from envs.sandboxes.start_times import measure_start


def held_by(owner):
    return [lease for lease in list_leases() if lease.owner == owner]


async def test_a_pool_hands_out_fresh_sandboxes_and_starts_others(monkeypatch):
    started = []

    async def start(*arguments, **options):
        sandbox = await real_start(*arguments, **options)
        started.append(options["owner"])
        return sandbox

    real_start = pools.start_sandbox
    monkeypatch.setattr(pools, "start_sandbox", start)
    monkeypatch.setattr(pools, "OWNER", "pool of this test")
    async with SandboxPool(2, backend=BACKEND) as pool:
        assert len(held_by("pool of this test")) == 2
        first = await pool.take("pool user 1", ttl_seconds=50.0)
        assert first.lease.owner == "pool user 1"
        assert 40 < first.lease.seconds_left() <= 50
        assert held_by("pool user 1") == [first.lease]
        assert "pool user 1" not in started, "nobody waited for a start"
        await first.write("secret", b"x")
        await first.stop()
        await pool.wait_until_full()
        assert len(held_by("pool of this test")) == 2
        second = await pool.take("pool user 2")
        assert (await second.exec(["ls", "-A"])).stdout == b""
        assert second.lease.id != first.lease.id
    assert held_by("pool of this test") == []
    assert (await second.exec(["true"])).exit_code == 0, "it belongs to its owner"
    await second.stop()


async def test_an_empty_pool_starts_one_for_whoever_asks():
    async with SandboxPool(1, backend=BACKEND) as pool:
        taken = [await pool.take(f"crowd {number}") for number in range(3)]
        assert len({sandbox.lease.id for sandbox in taken}) == 3
        for sandbox in taken:
            await sandbox.stop()


async def test_a_sandbox_that_died_while_it_waited_is_not_handed_out():
    async with SandboxPool(1, backend=BACKEND) as pool:
        dead = pool._ready[0]
        dead.lease.release()
        sandbox = await pool.take("survivor")
        assert sandbox is not dead
        assert (await sandbox.exec(["true"])).exit_code == 0
        await sandbox.stop()


async def test_a_pool_that_cannot_start_says_so():
    class Broken:
        name = "broken"

        async def find_problem(self):
            return "it is broken"

        async def start(self, limits, lease, inputs):
            lease.release()
            raise SandboxError("it is broken")

    with pytest.raises(SandboxError, match="it is broken"):
        async with SandboxPool(1, backend=Broken()):
            pass
    with pytest.raises(ValueError, match="at least 1"):
        SandboxPool(0)


async def test_starts_are_measured():
    times = await measure_start(5, backend=BACKEND)
    assert times.backend == "bubblewrap"
    assert len(times.cold_ms) == len(times.pooled_ms) == len(times.exec_ms) == 5
    assert min(times.cold_ms + times.pooled_ms + times.exec_ms) > 0
    with pytest.raises(ValueError, match="at least 1 start"):
        await measure_start(0)
