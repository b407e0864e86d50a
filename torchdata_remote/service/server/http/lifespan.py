"""Start and stop an ASGI application, by the lifespan protocol. Its error at the start is raised as it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import ASGIApp, Message


@contextlib.asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[dict[str, Any]]:
    """Start an application, and stop it after the block; yields the state that it made."""
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
    await asyncio.wait((running, starting), return_when=asyncio.FIRST_COMPLETED)
    if not is_started.is_set():
        starting.cancel()
        running.result()  # raises its error
    try:
        yield state
    finally:
        to_app.put_nowait({"type": "lifespan.shutdown"})
        await running
