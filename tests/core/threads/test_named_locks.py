"""Locks with names, held by threads and by tasks of the event loop."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_remote.core.threads.named_locks import NamedLocks


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans()), max_size=30))
def test_one_holder_per_name_whatever_waits_and_whatever_is_cancelled(jobs: list[tuple[str, bool, bool]]) -> None:
    """Threads and tasks by turns; afterwards no lock takes memory."""
    locks, inside, most = NamedLocks(), {"a": 0, "b": 0}, [0]

    def enter(name: str) -> None:
        inside[name] += 1
        most[0] = max(most[0], inside[name])

    def thread(name: str) -> None:
        with locks.held(name):
            enter(name)
            inside[name] -= 1

    async def task(name: str) -> None:
        async with locks.held_in_loop(name):
            enter(name)
            try:
                await asyncio.sleep(0)
            finally:
                inside[name] -= 1

    async def main() -> None:
        loop = asyncio.get_running_loop()
        running = []
        for name, is_thread, is_cancelled in jobs:
            if is_thread:
                running.append(loop.run_in_executor(None, thread, name))
                continue
            one = asyncio.create_task(task(name))
            running.append(one)
            if is_cancelled:
                await asyncio.sleep(0)
                loop.call_soon(one.cancel)
        results = await asyncio.gather(*running, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}

    asyncio.run(main())
    assert most[0] <= 1
    assert len(locks) == 0


def test_a_cancelled_task_passes_its_turn_on() -> None:
    """Also if it was its turn, and it had not noticed."""
    locks, order = NamedLocks(), []

    async def wait(number: int) -> None:
        async with locks.held_in_loop("a"):
            order.append(number)

    async def main() -> None:
        async with locks.held_in_loop("a"):
            tasks = [asyncio.create_task(wait(number)) for number in range(4)]
            await asyncio.sleep(0)
            tasks[0].cancel()
        tasks[1].cancel()  # the lock was given to it just now
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert order == [2, 3]
    assert len(locks) == 0
