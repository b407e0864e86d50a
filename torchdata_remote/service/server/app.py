"""The ASGI application: its routes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ...errors import RemoteDataError
from ...inspection.dataset_page import draw_sheet, summarize
from .blocking import run_blocking, set_number_of_threads
from .context import ServiceContext
from .datasets.dataset_root import DatasetRoot
from .datasets.file_metadata import location
from .http.error_responses import error_response
from .http.json_response import JSONResponse
from .limits import ServiceLimits
from .maintenance import Maintenance, exclusive_lock
from .middleware import AccessMiddleware, Metrics
from .problems import Problem
from .routes import batch_routes, dataset_routes, file_routes
from .routes.downloads import Downloads
from .routes.openapi import describe
from .stopping import ServiceStoppedError, Stopping

_PAGE = {
    "": ("index.html", "text/html"),
    "app.js": ("app.js", "text/javascript"),
    "sha256.js": ("sha256.js", "text/javascript"),
    "style.css": ("style.css", "text/css"),
}
_READING = ("GET", "HEAD")
STOPPING = "stopping"  # in the state of the lifespan: set it when the process is told to end
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")


def make_app(
    root: str,
    *,
    token: str | None,
    limits: ServiceLimits = ServiceLimits(),  # noqa: B008  # it is frozen
    storage_options: Mapping[str, Any] | None = None,
) -> ASGIApp:
    """Create the dataset service as an ASGI application.

    Args:
        root: URL of a local folder, or of a folder in a bucket; its folders are the datasets.
        token: required of requests; ``None`` accepts requests to loopback addresses only.
        limits: of requests.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        UrlError: for a root that cannot be written to.

    Example:
        >>> from tempfile import mkdtemp
        >>> from starlette.testclient import TestClient
        >>> with TestClient(make_app(mkdtemp(), token=None), base_url="http://localhost") as client:
        ...     client.post("/datasets", json={"name": "pets"}).status_code
        ...     client.get("/datasets").json()
        201
        {'datasets': [{'name': 'pets', 'location': '/datasets/pets'}]}
    """
    context = ServiceContext.at(DatasetRoot(root, storage_options), limits)
    metrics = Metrics(context.root)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Stopping]]:
        set_number_of_threads()
        with exclusive_lock(context):
            maintenance = await run_blocking(lambda: Maintenance(context))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(maintenance.run)
                try:
                    yield {STOPPING: context.stopping}
                finally:
                    context.stopping.set()
                    tasks.cancel_scope.cancel()

    async def metrics_response(request: Request) -> Response:
        text = await run_blocking(metrics.text)  # which asks the disk for its free space
        return Response(text, media_type="text/plain; version=0.0.4")

    dataset, file = "/datasets/{name}", "/datasets/{name}/files/{path:path}"
    app = Starlette(
        routes=[
            _route("/", GET=_page),
            _route("/page/{part}", GET=_page),
            _route("/healthz", GET=_health),
            _route("/metrics", GET=metrics_response),
            _route("/openapi.json", GET=_description),
            _route("/datasets", GET=dataset_routes.list_datasets, POST=dataset_routes.create_dataset),
            _route(
                dataset,
                GET=dataset_routes.get_dataset,
                PUT=dataset_routes.put_dataset,
                DELETE=dataset_routes.delete_dataset,
            ),
            _route(dataset + "/summary", GET=_summary),
            _route(dataset + "/sheet.png", GET=_sheet),
            _route(
                dataset + "/files",
                GET=file_routes.list_files,
                POST=batch_routes.get_batch,
                PUT=batch_routes.put_batch,
            ),
            _route(file, GET=file_routes.get_file, PUT=file_routes.put_file, DELETE=file_routes.delete_file),
        ],
        exception_handlers={HTTPException: _http_problem, ClientDisconnect: _client_disconnected}
        | dict.fromkeys((Problem, RemoteDataError, OSError, ServiceStoppedError), _problem),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.context = context
    return AccessMiddleware(Downloads(app, context), token=token, metrics=metrics)


def _route(path: str, **answers: Callable[[Request], Awaitable[Response]]) -> Route:
    """Create the route of a path with a handler per method. HEAD is handled as GET."""

    async def answer(request: Request) -> Response:
        handler = answers["GET" if request.method in _READING else request.method]
        if request.method in _READING or handler is batch_routes.get_batch:
            return await handler(request)
        try:
            return await handler(request)
        finally:
            ServiceContext.of(request).summaries.invalidate(request.path_params.get("name"))

    answer.__name__ = path.replace(":path", "")  # the label of its metrics
    return Route(path, answer, methods=list(answers))


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _description(request: Request) -> Response:
    return JSONResponse(describe())


async def _page(request: Request) -> Response:
    name, kind = _PAGE.get(request.path_params.get("part", ""), (None, None))
    if name is None:
        raise HTTPException(404)
    text = files(__package__).joinpath("page", name).read_bytes()
    return Response(text, headers={**_SECURITY_HEADERS, "Cache-Control": "no-cache"}, media_type=kind)


async def _summary(request: Request) -> Response:
    context, name, inside = (
        ServiceContext.of(request),
        request.path_params["name"],
        file_routes.bool_parameter(request, "inside", True),
    )
    url = await run_blocking(lambda: context.root.dataset_url(name))
    summary = await _look_into(
        context,
        name,
        f"summary {inside}",
        lambda: summarize(url, context.root.options, look_inside=inside, files=context.root.file_urls(name)),
    )
    return JSONResponse({"name": name, "location": location(name), **summary.as_json()})


async def _sheet(request: Request) -> Response:
    context, name = ServiceContext.of(request), request.path_params["name"]
    url = await run_blocking(lambda: context.root.dataset_url(name))
    sheet = await _look_into(
        context, name, "sheet", lambda: draw_sheet(url, context.root.options, files=context.root.file_urls(name))
    )
    if sheet is None:
        raise HTTPException(404, f"There are no images in {name!r}.")
    return Response(sheet, headers={"Cache-Control": "no-cache", **_SECURITY_HEADERS}, media_type="image/png")


async def _look_into(context: ServiceContext, name: str, kind: str, compute: Callable[[], T]) -> T:
    """Return a summary of a dataset. Other requests for it wait without a thread, and then find it in the cache."""
    async with context.in_turn.held_in_loop(("summary", name)):
        return await run_blocking(lambda: context.summaries.get(name, kind, compute), context.lanes.summarizing)


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "The client disconnected."}, 400)  # never received


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"There is nothing at {request.url.path:.200}. GET /openapi.json lists all paths."}
    default = error.detail in ("Not Found", "")
    message = messages.get(error.status_code, error.detail) if default else error.detail
    return JSONResponse({"error": message}, error.status_code, dict(error.headers or {}))


async def _problem(request: Request, error: Exception) -> Response:
    return error_response(error, f"{request.method} {request.url.path}", ServiceContext.of(request).root.url)
