"""Answer GET and HEAD of a file without the routes: these are nearly all requests while models train."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....errors import RemoteDataError
from ..context import ServiceContext
from ..datasets.names import require_path
from ..http.error_responses import error_response
from ..problems import Problem
from ..stopping import ServiceStoppedError
from .file_response import FileResponse

_READING = ("GET", "HEAD")
_DATASETS, _FILES = "/datasets/", "/files/"


class Downloads:
    """Answers GET and HEAD of files, and leaves other requests to the application.

    Args:
        app: answers them.
        context: of the application.
    """

    def __init__(self, app: ASGIApp, context: ServiceContext) -> None:
        self._app, self._context = app, context
        self.__name__ = f"{_DATASETS}{{name}}{_FILES}{{path}}"  # the label of its metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        found = _file_of(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["endpoint"] = self
        is_started = False

        async def noting_send(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            name, path = found
            await FileResponse(self._context, name, require_path(path))(scope, receive, noting_send)
        except (Problem, RemoteDataError, OSError, ServiceStoppedError) as error:
            if is_started:  # the server ends the connection, and the client sees that bytes are missing
                raise
            request = f"{scope['method']} {scope['path']}"
            await error_response(error, request, self._context.root.url)(scope, receive, send)


def _file_of(scope: Scope) -> tuple[str, str] | None:
    """Return the names of dataset and file, if a request asks for a file and nothing else."""
    if scope["method"] not in _READING or scope["query_string"] or not scope["path"].startswith(_DATASETS):
        return None
    name, separator, path = scope["path"][len(_DATASETS) :].partition(_FILES)
    return (name, path) if separator and path and "/" not in name else None
