"""Which certificate authorities are trusted, and who chose them."""

from __future__ import annotations

import os
import re

from ...core.urls import redact
from ...errors import UrlError
from .settings import NetworkSettings

VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")  # for all stores, in this order
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_CONFIG = "storage_options['config_kwargs']"
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
    """Return the file of authorities for a URL, or what the settings say. All files of certificates are validated.

    Raises:
        UrlError: names the file, and the option or the variable.
    """
    verify, source = authorities_of(network)
    if url.lower().startswith("https:"):
        if isinstance(verify, str):
            read_certificates(verify, source, url)
        require_client_certificate(network.client_cert, f"{_CONFIG}['client_cert']", url)
    of_proxies = f"{_CONFIG}['proxies_config']"
    if network.proxy_authorities is not None:
        read_certificates(network.proxy_authorities, f"{of_proxies}['proxy_ca_bundle']", url)
    require_client_certificate(network.proxy_client_cert, f"{of_proxies}['proxy_client_cert']", url)
    return verify


def read_certificates(file: str, source: str, url: str) -> str:
    """Return the certificates of a file in PEM, without the comments and keys that it may have.

    Raises:
        UrlError: if there are none, or one is damaged.
    """
    import ssl  # here: local files need none

    where = redact(url)
    try:
        with open(file, encoding="latin-1") as lines:
            text = lines.read()
        found = _CERTIFICATE.findall(text)
        if found:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise UrlError(
            f"{where}: a certificate of {file!r}, named by {source}, is damaged ({error.reason or error}). Export it "
            "again, in PEM.",
            url=where,
        ) from error
    except OSError as error:
        raise _unreadable(where, file, source, "certificate authorities", error) from error
    if not found:
        raise UrlError(
            f"{where}: {file!r}, named by {source}, has no certificate. Expected a file in PEM with -----BEGIN "
            "CERTIFICATE----- and -----END CERTIFICATE-----.",
            url=where,
        )
    return "\n".join([*found, ""])


def require_client_certificate(cert: str | tuple[str, ...] | None, source: str, url: str) -> None:
    """Validate a client's certificate and its key. A library reports a fault of theirs as one of the network.

    Raises:
        UrlError: if they cannot be read, do not belong together, or the key has a password, for which OpenSSL would
            ask at the terminal.
    """
    import ssl

    if cert is None:
        return
    files, where = (cert,) if isinstance(cert, str) else cert, redact(url)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
            files[0], files[1] if len(files) > 1 else None, _no_password
        )
    except ssl.SSLError as error:
        raise UrlError(
            f"{where}: {' and '.join(map(repr, files))}, named by {source}, are no certificate and its key in PEM "
            f"({error.reason or error}). Expected one file with both, or the certificate and then the key.",
            url=where,
        ) from error
    except ValueError:
        raise UrlError(
            f"{where}: the key of {' and '.join(map(repr, files))}, named by {source}, has a password. Decrypt it: "
            "openssl pkey -in KEY -out NEW_KEY.",
            url=where,
        ) from None
    except OSError as error:
        raise _unreadable(where, " or ".join(files), source, "the client's certificate", error) from error


def _no_password() -> str:
    raise ValueError


def _unreadable(where: str, file: str, source: str, what: str, error: OSError) -> UrlError:
    why = "no such file" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error.strerror}"
    return UrlError(
        f"{where}: {why}: {file!r}, named by {source}. It holds {what}: correct the path, or leave it out.", url=where
    )


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
