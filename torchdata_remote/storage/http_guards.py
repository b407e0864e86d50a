"""What fsspec's filesystems of http and s3 do not check by themselves: encoded bodies, redirects to other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.urls import HTTP, S3, redact
from ..errors import StorageError
from .http import IDENTITY, origin_of, redirected, require_unencoded

_OF_SESSION = ("auth", "cookies", "cookie_jar")  # which aiohttp sends to every host


def guarded(scheme: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Add options by which a filesystem refuses encoded bodies, and sends no header of the user to another host.

    aiohttp itself keeps only ``Authorization`` and the cookies of a request from other hosts.

    Args:
        scheme: protocol as in the URL.
        keywords: of the filesystem; not changed.
    """
    if scheme in S3:
        return _of_s3(keywords)
    if scheme not in HTTP:
        return keywords
    import aiohttp

    client = dict(keywords.get("client_kwargs") or {})
    names = {name.lower() for name in (*(keywords.get("headers") or ()), *(client.get("headers") or ()))}
    of_session = [name for name in _OF_SESSION if client.get(name) is not None]

    async def before_redirect(session: object, context: object, params: Any) -> None:
        here = str(params.response.url)
        next_url = redirected(here, params.response.headers.get("Location", ""))
        if next_url is not None and origin_of(next_url) == origin_of(here):
            return
        for name in [name for name in params.headers if name.lower() in names]:
            del params.headers[name]
        if of_session:
            shown = redact(here)
            raise StorageError(
                f"{shown}: redirects to another host, to which storage_options['client_kwargs'][{of_session[0]!r}] "
                "must not be sent. Pass it as storage_options['headers'], or use the URL at which the object is.",
                url=shown,
            )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(before_redirect)
    trace.on_request_end.append(_after_request)
    client["trace_configs"] = [*(client.get("trace_configs") or ()), trace]
    client.setdefault("auto_decompress", False)
    return {**keywords, "client_kwargs": client, "headers": {**IDENTITY, **(keywords.get("headers") or {})}}


async def _after_request(session: object, context: object, params: Any) -> None:
    if params.response.status in (200, 206):
        plain = str(params.url).partition("?")[0]
        require_unencoded(params.response.headers.get("Content-Encoding"), plain, plain)


def _of_s3(keywords: dict[str, Any]) -> dict[str, Any]:
    from aiobotocore.session import AioSession
    from botocore.handlers import add_expect_header

    keywords = dict(keywords)
    profile = keywords.pop("profile", None)
    session = keywords.get("session") or AioSession(profile=profile)
    session.unregister("before-call.s3", add_expect_header)  # aiohttp waits for 100 Continue without a time limit
    session.register("after-call.s3.GetObject", _after_get_object, unique_id="torchdata_remote-encoding")
    return {**keywords, "session": session}


def _after_get_object(http_response: Any, parsed: Mapping[str, Any], **_: Any) -> None:
    plain = str(http_response.url).partition("?")[0]
    require_unencoded(parsed.get("ContentEncoding"), plain, plain)
