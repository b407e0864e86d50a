"""Read and drop the rest of a body before an error is answered.

Otherwise the server ends the connection with bytes on their way, and the client sees a reset instead of the answer.
"""

from __future__ import annotations

import anyio
from starlette.types import Message, Receive, Scope

MAX_BYTES = 64 << 20  # as much as clients send at once before they look for an answer
_TIMEOUT_S = 10.0


class UnreadBody:
    """The body of one request, received by :meth:`receive`.

    Args:
        scope: of the request.
        receive: the server's.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        headers = dict(scope["headers"])
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        self._is_read = not has_body or b"expect" in headers  # whose sender waits for the answer
        self.num_bytes = 0

    async def receive(self) -> Message:
        """Receive the next message."""
        message = await self._receive()
        self.num_bytes += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        return message

    async def drop(self, max_bytes: int) -> None:
        """Receive what is left, at most ``max_bytes`` and for ten seconds."""
        if self._is_read:
            return
        limit = self.num_bytes + max_bytes
        with anyio.move_on_after(_TIMEOUT_S):
            while not self._is_read and self.num_bytes < limit:
                await self.receive()
