"""The service's addresses."""

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
from . import dataset_routes as of_datasets
from . import file_routes as of_files
from . import maintenance as housekeeping
from .context import ServiceContext
from .dataset_root import DatasetRoot
from .file_metadata import location
from .limits import ServiceLimits
from .middleware import AccessMiddleware, Metrics
from .openapi import describe
from .problems import Problem, problem_of
from .request_body import in_thread

_NUM_THREADS = 128  # each waits for a disk or a store; an event loop cannot
_PAGE = {
    "": ("index.html", "text/html"),
    "app.js": ("app.js", "text/javascript"),
    "style.css": ("style.css", "text/css"),
}
_READING = ("GET", "HEAD")
_SAFE = {
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
    """The dataset service as an ASGI application.

    Args:
        root: URL of a folder, local or of any store that can be written to; its folders are the datasets.
        token: that requests have to show; ``None`` answers to loopback addresses only.
        limits: of what is taken.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        UrlError: for a root that cannot keep datasets.

    Example:
        >>> from starlette.testclient import TestClient
        >>> with TestClient(make_app("memory://served/", token=None), base_url="http://localhost") as client:
        ...     client.post("/datasets", json={"name": "pets"}).status_code
        ...     client.get("/datasets").json()
        201
        {'datasets': [{'name': 'pets', 'location': '/dataset/pets'}]}
    """
    hosting = ServiceContext.at(DatasetRoot(root, storage_options), limits)
    metrics = Metrics(hosting.shelf)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _NUM_THREADS
        with housekeeping.alone(hosting):
            await in_thread(lambda: housekeeping.begin(hosting))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_keep_tidy, hosting)
                yield
                tasks.cancel_scope.cancel()

    async def tell_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    dataset, file = "/datasets/{name}", "/datasets/{name}/files/{path:path}"
    app = Starlette(
        routes=[
            _route("/", GET=_page),
            _route("/page/{part}", GET=_page),
            _route("/healthz", GET=_health),
            _route("/metrics", GET=tell_metrics),
            _route("/openapi.json", GET=_description),
            _route("/datasets", GET=of_datasets.list_datasets, POST=of_datasets.create_dataset),
            _route(
                dataset, GET=of_datasets.get_dataset, PUT=of_datasets.put_dataset, DELETE=of_datasets.delete_dataset
            ),
            _route(dataset + "/summary", GET=_summary),
            _route(dataset + "/sheet.png", GET=_sheet),
            _route(dataset + "/files", GET=of_files.list_files),
            _route(file, GET=of_files.get_file, PUT=of_files.put_file, DELETE=of_files.delete_file),
        ],
        exception_handlers={HTTPException: _http_problem, ClientDisconnect: _went}
        | dict.fromkeys((Problem, RemoteDataError, OSError), _problem),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.hosting = hosting
    return AccessMiddleware(app, token=token, metrics=metrics)


def _route(path: str, **answers: Callable[[Request], Awaitable[Response]]) -> Route:
    """One address; what answers each method. HEAD is answered as GET."""

    async def answer(request: Request) -> Response:
        if request.method in _READING:
            return await answers["GET"](request)
        try:
            return await answers[request.method](request)
        finally:
            ServiceContext.of(request).looks.forget(request.path_params.get("name"))

    answer.__name__ = path.replace(":path", "")  # by which it is counted
    return Route(path, answer, methods=list(answers))


async def _keep_tidy(hosting: ServiceContext) -> None:
    while True:
        await anyio.sleep(housekeeping.EVERY_S)
        try:
            await in_thread(lambda: housekeeping.tidy(hosting))
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
    return Response(text, headers={**_SAFE, "Cache-Control": "no-cache"}, media_type=kind)


async def _summary(request: Request) -> Response:
    hosting, name, inside = (
        ServiceContext.of(request),
        request.path_params["name"],
        of_files.flag(request, "inside", True),
    )
    url = await in_thread(lambda: hosting.shelf.url(name))
    summary = await in_thread(
        lambda: hosting.looks.of(
            name, f"summary {inside}", lambda: summarize(url, hosting.shelf.options, look_inside=inside)
        )
    )
    return JSONResponse({"name": name, "location": location(name), **summary.as_json()})


async def _sheet(request: Request) -> Response:
    hosting, name = ServiceContext.of(request), request.path_params["name"]
    url = await in_thread(lambda: hosting.shelf.url(name))
    sheet = await in_thread(lambda: hosting.looks.of(name, "sheet", lambda: draw_sheet(url, hosting.shelf.options)))
    if sheet is None:
        raise HTTPException(404, f"There are no images in {name!r}.")
    return Response(sheet, headers={"Cache-Control": "no-cache", **_SAFE}, media_type="image/png")


async def _went(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "The client went away."}, 400)  # nobody reads it


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: f"There is nothing at {request.url.path}. GET /openapi.json tells what there is."}
    default = error.detail in ("Not Found", "")
    message = said.get(error.status_code, error.detail) if default else error.detail
    return JSONResponse({"error": message}, error.status_code, dict(error.headers or {}))


async def _problem(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse({"error": "The service made a mistake. Its log tells more."}, 500)
    return JSONResponse({"error": problem.message}, problem.status, problem.headers)
