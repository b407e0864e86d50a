"""The ASGI application: its routes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from . import routes
from .access import AccessMiddleware
from .context import Context, open_root
from .limits import ServiceLimits
from .problems import JSONResponse
from .responses import NO_SNIFF
from .threads import run_blocking

_PAGE = {
    "": ("index.html", "text/html"),
    "openapi.json": ("openapi.json", "application/json"),
    "app.js": ("app.js", "text/javascript"),
    "sha256.js": ("sha256.js", "text/javascript"),
    "style.css": ("style.css", "text/css"),
}
_READING = ("GET", "HEAD")
_CLEANING_S = 3600.0
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    **NO_SNIFF,
}
_log = logging.getLogger("torchdata_remote")


def make_app(
    root: str,
    *,
    token: str | None,
    limits: ServiceLimits = ServiceLimits(),  # noqa: B008  # it is frozen
    storage_options: Mapping[str, Any] | None = None,
    pass_through: bool = False,
) -> AccessMiddleware:
    """Create the dataset service as an ASGI application.

    Args:
        root: URL of a local folder, or of a folder in a bucket; its folders are the datasets.
        token: required of requests; ``None`` accepts requests to loopback addresses only.
        limits: of requests.
        storage_options: for the store, in fsspec's vocabulary.
        pass_through: whether files of a bucket are sent by the service, and clients are not redirected to the bucket.

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
    dataset = "/datasets/{name}"
    router = Router(
        [
            _route("/", GET=_page),
            _route("/page/{part}", GET=_page),
            _route("/healthz", GET=_health),
            _route("/metrics", GET=_metrics),
            _route("/openapi.json", GET=_page),
            _route("/datasets", GET=routes.list_datasets, POST=routes.create_dataset),
            _route(dataset, GET=routes.get_dataset, PUT=routes.put_dataset, DELETE=routes.delete_dataset),
            _route(dataset + "/summary", GET=routes.summary),
            _route(dataset + "/sheet.png", GET=routes.sheet),
            _route(dataset + "/files", GET=routes.list_files, POST=routes.get_batch),
            _route(dataset + "/files/{path:path}", GET=routes.get_file, PUT=routes.put_file, DELETE=routes.delete_file),
        ],
        redirect_slashes=False,
        lifespan=lifespan,
    )
    return AccessMiddleware(
        router, Context(open_root(root, storage_options, pass_through=pass_through), limits), token=token
    )


@contextlib.asynccontextmanager
async def lifespan(app: AccessMiddleware) -> AsyncIterator[None]:
    """Serve the root in this block, and clean it up now and then."""
    context = app.context
    with context.root.served():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_clean, context)
            try:
                yield
            finally:
                context.stopping.is_set = True
                tasks.cancel_scope.cancel()


async def _clean(context: Context) -> None:
    """Remove what killed services left, at the start and every hour. An error is no reason to end the service."""
    while True:
        try:
            await run_blocking(lambda: context.root.clean(context.stopping), "remove")
        except Exception as error:  # noqa: BLE001  # of the store or the disk, or a defect: others are served
            if not context.stopping.is_set:
                _log.warning("A clean-up of %s failed, and will be repeated: %s", context.root.url, error)
        await anyio.sleep(_CLEANING_S)


def _route(path: str, **answers: Callable[[Request], Awaitable[Response]]) -> Route:
    """Create the route of a path with a handler per method. HEAD is handled as GET."""

    async def answer(request: Request) -> Response:
        handler = answers["GET" if request.method in _READING else request.method]
        try:
            return await handler(request)
        finally:
            if request.method not in _READING and handler is not routes.get_batch:
                Context.of(request).changed(request.path_params.get("name", ""))

    answer.__name__ = path.replace(":path", "")  # the label of its metrics
    return Route(path, answer, methods=list(answers))


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    text = await run_blocking(request.app.metrics.text)  # which asks the disk for its free space
    return Response(text, media_type="text/plain; version=0.0.4")


async def _page(request: Request) -> Response:
    part = request.path_params.get("part", request.url.path.lstrip("/"))
    name, kind = _PAGE.get(part, (None, None))
    if name is None:
        raise HTTPException(404)
    text = files(__package__).joinpath("page", name).read_bytes()
    return Response(text, headers={**_SECURITY_HEADERS, "Cache-Control": "no-cache"}, media_type=kind)
