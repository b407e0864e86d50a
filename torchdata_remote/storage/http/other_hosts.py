"""Keep what authorises a user from the other hosts to which a server redirects, in fsspec's http filesystem.

aiohttp itself keeps only ``Authorization`` and the cookies of a request from them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from ...core.urls import HTTP, redact
from ...errors import StorageError

_OF_SESSION = ("auth", "cookies", "cookie_jar")  # which aiohttp sends to every host


def with_redirect_guard(scheme: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Add options by which an fsspec filesystem of http sends the user's headers to no other host.

    Args:
        scheme: protocol as in the URL.
        keywords: of the filesystem; not changed.
    """
    if scheme not in HTTP:
        return keywords
    import aiohttp

    client = dict(keywords.get("client_kwargs") or {})
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(
        _before_redirect([*(keywords.get("headers") or ()), *(client.get("headers") or ())], client)
    )
    client["trace_configs"] = [*(client.get("trace_configs") or ()), trace]
    return {**keywords, "client_kwargs": client}


def _before_redirect(headers: Iterable[str], client: Mapping[str, Any]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a hook of aiohttp, which it calls before it follows a redirect.

    Args:
        headers: names of those that the user gave.
        client: the user's options for the session.
    """
    own = {name.lower() for name in headers}
    of_session = [name for name in _OF_SESSION if client.get(name) is not None]

    async def before_redirect(session: object, context: object, params: Any) -> None:
        location = params.response.headers.get("Location")
        if location is None or not _leads_away(params.response.url, location):
            return
        for name in [name for name in params.headers if name.lower() in own]:
            del params.headers[name]
        if of_session:
            shown = redact(str(params.response.url))
            raise StorageError(
                f"{shown}: redirects to another host, to which storage_options['client_kwargs'][{of_session[0]!r}] "
                "must not be sent. Pass it as storage_options['headers'], or use the URL at which the object is.",
                url=shown,
            )

    return before_redirect


def _leads_away(url: Any, location: str) -> bool:
    """Whether a redirect leads to another host, port or scheme; also if that is not known."""
    from yarl import URL

    try:
        following = url.join(URL(location))
        return bool(following.origin() != url.origin())
    except ValueError:
        return True
