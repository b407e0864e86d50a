"""Which certificate authorities are trusted, and who chose them."""

from __future__ import annotations

import os

from ...core.urls import redact
from ...errors import UrlError
from .settings import NetworkSettings

VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")  # for all stores, in this order
_noted: dict[str, str] = {}  # by scheme and bucket or host, for errors


def authorities_of(network: NetworkSettings) -> tuple[bool | str | None, str]:
    """Return the file of authorities and who named it; ``False``, ``True`` or ``None`` as in the settings."""
    if network.verify is not None:
        return network.verify, network.verify_source
    for variable in VARIABLES:
        if file := os.environ.get(variable):
            return file, f"the environment variable {variable}"
    return None, ""


def require_authorities(network: NetworkSettings, url: str) -> bool | str | None:
    """Return the file of authorities for a URL, after a check that it can be used; or what the settings say.

    Raises:
        UrlError: names the file, and the option or the variable.
    """
    verify, source = authorities_of(network)
    if isinstance(verify, str) and url.lower().startswith("https:"):
        read_certificates(verify, source, url)
    return verify


def read_certificates(file: str, source: str, url: str) -> str:
    """Return the certificates of a file in PEM, which may have comments.

    Raises:
        UrlError: if there are none.
    """
    try:
        with open(file, encoding="latin-1") as lines:
            text = lines.read()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        why = "no such file" if missing else f"{type(error).__name__}: {error.strerror}"
        raise UrlError(
            f"{redact(url)}: {why}: {file!r}, named by {source}. It holds certificate authorities: correct the path, "
            "or leave it out.",
            url=redact(url),
        ) from error
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise UrlError(
            f"{redact(url)}: {file!r}, named by {source}, has no certificate. Expected a file in PEM with "
            "-----BEGIN CERTIFICATE-----.",
            url=redact(url),
        )
    return text


def note_authorities(url: str, network: NetworkSettings) -> None:
    """Record which authorities are trusted for a bucket or host, for errors about certificates."""
    _noted[_host_key(url)] = _describe(network)


def describe_authorities(url: str) -> str:
    """Name the authorities that are trusted for a bucket or host, such as ``/ca.pem (AWS_CA_BUNDLE)``."""
    return _noted.get(_host_key(url)) or _describe(NetworkSettings())


def _describe(network: NetworkSettings) -> str:
    verify, source = authorities_of(network)
    return f"{verify} ({source})" if isinstance(verify, str) else "those of the system or of certifi"


def _host_key(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])
