"""Applications that start, fail to start, and are stopped while they start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from starlette.applications import Starlette

from torchdata_remote.service.server.http.lifespan import lifespan


def app_of(starting: Callable[[], Awaitable[object]], happened: list[str]) -> Starlette:
    """Create an application that notes its start and its end, and has a task of its own."""

    @contextlib.asynccontextmanager
    async def around(app: Starlette) -> AsyncIterator[dict[str, int]]:
        try:
            await starting()
            happened.append("start")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep_forever)
                try:
                    yield {"x": 1}
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            happened.append("end")

    return Starlette(lifespan=around)


async def nothing() -> None: ...


def test_it_runs_during_the_block() -> None:
    happened: list[str] = []

    async def main() -> None:
        async with lifespan(app_of(nothing, happened)) as state:
            assert state == {"x": 1}
            happened.append("block")
        happened.append("after")

    asyncio.run(main())
    assert happened == ["start", "block", "end", "after"]


def test_its_error_at_the_start_is_raised_as_it_is() -> None:
    async def fail() -> None:
        raise OSError("no lock")

    async def main() -> None:
        async with lifespan(app_of(fail, [])):
            raise AssertionError("not reached")

    with pytest.raises(OSError, match="no lock"):
        asyncio.run(main())


@pytest.mark.filterwarnings("error")
def test_cancelled_while_it_starts_it_has_ended_when_that_is_raised() -> None:
    """After each number of turns of the loop, before its first task has begun among them."""
    outcomes = {tuple(cancelled_after(turns)) for turns in range(12)}
    assert outcomes == {(), ("end", "after"), ("start", "end", "after")}


def cancelled_after(turns: int) -> list[str]:
    """What happens in an application whose start is cancelled after a number of turns of the loop."""
    happened: list[str] = []

    async def waiting() -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def start() -> None:
        try:
            async with lifespan(app_of(waiting, happened)):
                await asyncio.Event().wait()
        finally:
            happened.append("after")

    async def main() -> None:
        task = asyncio.ensure_future(start())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    return happened
