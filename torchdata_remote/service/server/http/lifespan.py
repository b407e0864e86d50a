"""Start and stop an ASGI application, by the lifespan protocol. Its error at the start is raised as it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import ASGIApp, Message


@contextlib.asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[dict[str, Any]]:
    """Start an application, and stop it after the block; yields the state that it made.

    If this is cancelled while the application starts, the application has ended when the cancellation is raised.
    """
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    is_started = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            is_started.set()

    state: dict[str, Any] = {}
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    running = asyncio.ensure_future(app(scope, to_app.get, send))
    to_app.put_nowait({"type": "lifespan.startup"})
    starting = asyncio.ensure_future(is_started.wait())
    try:
        await asyncio.wait((running, starting), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # left to the end of the loop, tasks of the application would end before they began
        running.cancel()
        await asyncio.wait((running,))
        raise
    finally:
        starting.cancel()
    if not is_started.is_set():
        running.result()  # raises its error
    try:
        yield state
    finally:
        to_app.put_nowait({"type": "lifespan.shutdown"})
        await running
