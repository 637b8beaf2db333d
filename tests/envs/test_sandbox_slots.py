"""One bound for all event loops of the process; nobody's slot is lost."""

import asyncio
import threading
import time

from envs.sandboxes.slots import Slots


def run_in_threads(number, work):
    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()


def test_loops_of_several_threads_share_the_bound():
    slots, lock, inside, most = Slots(2), threading.Lock(), 0, 0

    async def hold():
        nonlocal inside, most
        async with slots:
            with lock:
                inside += 1
                most = max(most, inside)
            await asyncio.sleep(0.02)
            with lock:
                inside -= 1

    async def hold_three():
        await asyncio.gather(hold(), hold(), hold())

    run_in_threads(5, hold_three)
    assert (inside, most) == (0, 2)


async def test_who_is_cancelled_while_waiting_takes_no_slot():
    slots = Slots(1)

    async def hold():
        async with slots:
            await asyncio.sleep(0)

    async with slots:
        waiting = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        await asyncio.sleep(0)
        waiting[1].cancel()
    # The slot is handed to the next one while that one is being cancelled.
    await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(5), slots:
        pass


def test_a_loop_that_ended_while_waiting_is_passed_over():
    slots = Slots(1)
    loop = asyncio.new_event_loop()
    held = asyncio.new_event_loop()
    held.run_until_complete(slots.__aenter__())
    waiting = loop.create_task(slots.__aenter__())
    loop.run_until_complete(asyncio.sleep(0))
    waiting._log_destroy_pending = False
    loop.close()
    held.run_until_complete(slots.__aexit__())

    async def take():
        async with asyncio.timeout(5), slots:
            return True

    assert held.run_until_complete(take())
    held.close()
    del waiting
    time.sleep(0)
