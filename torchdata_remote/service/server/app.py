"""The ASGI application: its routes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ...errors import RemoteDataError
from ...inspection import draw_sheet, summarize
from . import batch_routes, dataset_routes, file_routes, maintenance
from .context import ServiceContext
from .dataset_root import DatasetRoot
from .downloads import Downloads
from .file_metadata import location
from .limits import ServiceLimits
from .middleware import AccessMiddleware, Metrics
from .openapi import describe
from .problems import Problem, error_response
from .request_body import run_blocking

_NUM_THREADS = 128  # for calls that wait for a disk or a store
_PAGE = {
    "": ("index.html", "text/html"),
    "app.js": ("app.js", "text/javascript"),
    "style.css": ("style.css", "text/css"),
}
_READING = ("GET", "HEAD")
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

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
        root: URL of a folder, in any store that can be written to; its folders are the datasets.
        token: required of requests; ``None`` accepts requests to loopback addresses only.
        limits: of requests.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        UrlError: for a root that cannot be written to.

    Example:
        >>> from starlette.testclient import TestClient
        >>> with TestClient(make_app("memory://served/", token=None), base_url="http://localhost") as client:
        ...     client.post("/datasets", json={"name": "pets"}).status_code
        ...     client.get("/datasets").json()
        201
        {'datasets': [{'name': 'pets', 'location': '/dataset/pets'}]}
    """
    context = ServiceContext.at(DatasetRoot(root, storage_options), limits)
    metrics = Metrics(context.root)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _NUM_THREADS
        with maintenance.exclusive_lock(context):
            await run_blocking(lambda: maintenance.recover(context))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_clean_up_regularly, context)
                yield
                tasks.cancel_scope.cancel()

    async def metrics_response(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

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
        | dict.fromkeys((Problem, RemoteDataError, OSError), _problem),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.context = context
    return AccessMiddleware(Downloads(app, context), token=token, metrics=metrics, limits=limits)


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


async def _clean_up_regularly(context: ServiceContext) -> None:
    while True:
        await anyio.sleep(maintenance.INTERVAL_S)
        try:
            await run_blocking(lambda: maintenance.clean_up(context))
        except OSError as error:
            _log.warning("old uploads could not be removed: %s", error)


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
    summary = await run_blocking(
        lambda: context.summaries.get(
            name, f"summary {inside}", lambda: summarize(url, context.root.options, look_inside=inside)
        )
    )
    return JSONResponse({"name": name, "location": location(name), **summary.as_json()})


async def _sheet(request: Request) -> Response:
    context, name = ServiceContext.of(request), request.path_params["name"]
    url = await run_blocking(lambda: context.root.dataset_url(name))
    sheet = await run_blocking(
        lambda: context.summaries.get(name, "sheet", lambda: draw_sheet(url, context.root.options))
    )
    if sheet is None:
        raise HTTPException(404, f"There are no images in {name!r}.")
    return Response(sheet, headers={"Cache-Control": "no-cache", **_SECURITY_HEADERS}, media_type="image/png")


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "The client disconnected."}, 400)  # never received


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"There is nothing at {request.url.path}. GET /openapi.json lists all paths."}
    default = error.detail in ("Not Found", "")
    message = messages.get(error.status_code, error.detail) if default else error.detail
    return JSONResponse({"error": message}, error.status_code, dict(error.headers or {}))


async def _problem(request: Request, error: Exception) -> Response:
    return error_response(error, f"{request.method} {request.url.path}")
