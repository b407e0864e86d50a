"""Errors of requests without a usable response: no such host, refused, untrusted, not HTTP."""

from __future__ import annotations

import re

from ..core.notices.slow_notice import host_of
from ..core.urls import HTTP, S3, redact
from ..errors import StorageError, TransientStorageError
from .network import describe_authorities

_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|InvalidCertificate|CertificateError")
_REDIRECTS = re.compile(r"TooManyRedirects|too many redirects", re.IGNORECASE)
_UNKNOWN_HOST = re.compile(
    r"Name or service not known|No address associated with hostname|Name does not resolve|nodename nor servname|"
    r"getaddrinfo failed|Errno 1100[14]"
)
_SILENT_NAME_SERVER = re.compile(r"Temporary failure in name resolution|Try again|EAI_AGAIN|Errno 11002")
_REFUSED = re.compile(
    r"[Cc]onnection refused|ECONNREFUSED|[Cc]onnect call failed|No route to host|Network is unreachable"
)
_PROTOCOL_ERROR = re.compile(
    r"BadStatusLine\(|[Bb]ad status line|InvalidHeader|unmatching values|Duplicate Content-Length|Invalid character in "
    r"Content-Length|Invalid header|WRONG_VERSION_NUMBER|wrong version number|RECORD_LAYER_FAILURE|InvalidContentType|"
    r"UnsupportedProtocol|Parse\(|ResponseParserError"
)
_PROXY_LOGIN = re.compile(r"ProxyAuthRequired|Tunnel connection failed: 407")
_UNSENDABLE = re.compile(r"Invalid header value b?['\"]")  # of http.client, with the value
_NO_TUNNEL = re.compile(r"TunnelUnsuccessful|Tunnel connection failed")
_SERVER = re.compile(r"https?://([^/\s\"'<>?]+)")
_HOST = re.compile(r"connect to host ([^\s\"']+)|host='([^']+)'(?:, port=(\d+))?")  # aiohttp, urllib3
_MAX_CAUSES = 8
_CHECK_S3 = "the endpoint_url (in storage_options, AWS_ENDPOINT_URL or ~/.aws/config), the region"
_known_hosts: set[str] = set()  # scheme and bucket or host, of those that have responded


def mark_host_known(url: str) -> None:
    """Record that the host of a URL has responded: its name exists, although a name server may fail later."""
    _known_hosts.add(_host_key(url))


def _host_key(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


def details_of(error: BaseException) -> str:
    """All texts of a transport's error and of the errors that caused it, in which :func:`network_error` searches."""
    found: list[str] = []
    current: object = error
    while isinstance(current, BaseException) and len(found) < _MAX_CAUSES:
        found.append(f"{current} {current!r}")
        current = getattr(current, "kwargs", {}).get("error") or current.__cause__ or current.__context__
    return " ".join(found)


def network_error(url: str, what: str, details: str) -> StorageError:
    """Make the error for a request without a response, or with one that is not HTTP.

    A refused or reset connection is transient. A violation of the protocol may be the mistake of a proxy, an unknown
    host name that of a host that is being set up, and a name server that does not respond may be starting: these are
    retried a few times only. A host that has responded once is never unknown.

    Args:
        url: of the request.
        what: the transport's message, without secrets.
        details: all texts of the transport's error, in which the cause is searched.
    """
    shown, what = redact(url), what.rstrip(".")
    if _CERTIFICATE.search(details):
        return StorageError(
            f"{shown}: {what}. The server's certificate is not trusted; the authorities are "
            f"{describe_authorities(url)}. Name a file with its authority in {_to_trust(url)}, and check host name and "
            "clock.",
            url=shown,
        )
    if _REDIRECTS.search(details):
        return StorageError(
            f"{shown}: {what}: too many redirects. Use the URL at which the object is stored.", url=shown
        )
    if _UNSENDABLE.search(details):
        return StorageError(
            f"{shown}: a header of the request would hold a line break or another control character. It is in the key, "
            "the token, the region or another option, or in the environment: remove it.",
            url=shown,
        )
    if _PROXY_LOGIN.search(details):
        return refused_by_proxy(url)
    unknown, silent = _UNKNOWN_HOST.search(details) is not None, _SILENT_NAME_SERVER.search(details) is not None
    refused = _REFUSED.search(details) is not None
    message = f"{shown}: {what}."
    if unknown or silent:
        why = "No such host" if unknown else "No name server knows the host, or none answers"
        message = f"{shown}: {why}: {_server(url, details)}. Check {_to_check(url)} and the spelling ({what})."
    elif refused:
        message = f"{shown}: {_server(url, details)} refuses connections ({what}). Check {_to_check(url)} and the port."
    elif _NO_TUNNEL.search(details):
        message = (
            f"{shown}: the proxy opens no connection to the server ({what}). Check {_to_check(url)}, and whether the "
            "proxy allows that host; NO_PROXY names hosts that need none."
        )
    transient = TransientStorageError(message, url=shown)
    transient.unreachable = _server(url, details) if unknown or silent or refused else ""
    never_seen = _host_key(url) not in _known_hosts
    transient.likely_permanent = ((unknown or silent) and never_seen) or any(
        pattern.search(details) is not None for pattern in (_PROTOCOL_ERROR, _NO_TUNNEL)
    )
    return transient


def refused_by_proxy(url: str) -> StorageError:
    """Make the error for a proxy that needs other credentials than it got."""
    return StorageError(
        f"{redact(url)}: the proxy asks for a user and a password, or refuses those that it got (407). They belong "
        "into its URL, before the host and an @: user:password@host:3128. A @, : or / in them is written as %40, %3A "
        "or %2F.",
        url=redact(url),
    )


def _server(url: str, details: str) -> str:
    """The host that was asked, with its port if it has one."""
    if (found := _SERVER.search(details)) is not None:
        return found[1].rpartition("@")[2]
    if (found := _HOST.search(details)) is not None:
        return found[1] or ":".join(filter(None, found.groups()[1:]))
    return host_of(url).partition("://")[2]


def _to_check(url: str) -> str:
    """What may be wrong for a URL of this scheme."""
    scheme = url.partition("://")[0]
    if scheme in S3:
        return _CHECK_S3
    if scheme == "datasets":
        return "that `torchdata-remote serve` runs there, the host of the URL"
    if scheme == "hf":
        return "the Hub's address (endpoint in storage_options, or HF_ENDPOINT)"
    return "the host of the URL" if scheme in HTTP else "the host in the URL or in storage_options"


def _to_trust(url: str) -> str:
    """Where a user names certificate authorities for a URL."""
    if url.partition("://")[0] in S3:
        return "AWS_CA_BUNDLE, ca_bundle of ~/.aws/config, or storage_options={'client_kwargs': {'verify': ...}}"
    return "SSL_CERT_FILE or REQUESTS_CA_BUNDLE"


def unusable_response(url: str, what: str) -> TransientStorageError:
    """Make the error for a response that cannot be used. It is retried, since it may be the mistake of a proxy."""
    error = TransientStorageError(f"{redact(url)}: {what}.", url=redact(url))
    error.likely_permanent = True
    return error
