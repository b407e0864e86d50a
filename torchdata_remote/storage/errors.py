"""Convert exceptions of libraries, and refusals of stores, to this package's errors.

A table ``from_...`` returns the error of this package for one of a library. ``from_status`` knows what the statuses and
codes of stores mean.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..core.arguments import did_you_mean
from ..core.notices import host_of
from ..core.urls import AZURE, GS, HTTP, S3, redact, redact_text
from ..errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from .protocol import RangeNotSatisfiableError, UnreadableResponseError, UnsupportedRequestError, WrongRegionError

Table = Callable[..., Exception]
_WITH_QUERY = re.compile(r"https?://[^\s'\"<>()]+\?")  # such as where a response redirects to
_MAX_CAUSES, _MAX_SAID = 8, 500  # exceptions in a chain, characters of a store's message


@contextlib.contextmanager
def translate_errors(url: str, table: Table | None = None, **options: bool) -> Iterator[None]:
    """Raise what a library raises in the block as this package's errors: no other exception leaves it.

    Args:
        url: of the request.
        table: converts the library's exceptions, if :func:`from_library` does not.
        options: of the table.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  # converted
        converted = to_package_error(error, url, table, **options)
        raise converted from converted.__cause__


def to_package_error(error: Exception, url: str, table: Table | None = None, **options: bool) -> Exception:
    """Convert an exception by a table, which is :func:`from_library` if none is given.

    It is the cause of the error, unless its message may have secrets.
    """
    if isinstance(error, RemoteDataError | MemoryError):
        return error
    converted = (table or from_library)(error, url, **options)
    converted.args = (redact_text(str(converted)),)  # such as the address of a proxy, with its password
    details = details_of(error)
    may_be_signed = _store_of(url) != "s3" and _WITH_QUERY.search(details)
    if (
        url == redact(url)
        and details == redact_text(details)
        and not may_be_signed
        and converted is not error.__cause__
    ):
        converted.__cause__ = error
    return converted


# Responses of stores

_STORES = {
    **dict.fromkeys(S3, "s3"),
    **dict.fromkeys(GS, "gs"),
    **dict.fromkeys(AZURE, "az"),
    **dict.fromkeys(HTTP, "http"),
}
_DENIED = {
    "s3": "Check the credentials (storage_options or the AWS environment) and their rights; a public bucket needs "
    "storage_options={'anon': True}.",
    "gs": "The account needs a role for the bucket: Storage Object Viewer to read, Storage Object User to write too. A "
    "public bucket needs storage_options={'token': 'anon'}.",
    "http": "Check the path, and whether a signed URL has expired or the server asks for a login.",
    "": "Check the credentials (storage_options or the environment) and their rights.",
}
# What codes of S3 and Google (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html) and of Azure
# (https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes) mean, where the status does not say it
_CODES: dict[str, type[StorageError]] = {
    code: kind
    for kind, codes in {
        TransientStorageError: "SlowDown ServerBusy OperationTimedOut RequestTimeout InternalError ServiceUnavailable "
        "ThrottlingException KMS.ThrottlingException ConditionalRequestConflict ContainerBeingDeleted "
        "AccountBeingCreated",
        ExpiredCredentialsError: "ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired "
        "RequestTimeTooSkewed InvalidAuthenticationInfo",
        ObjectNotFoundError: "NoSuchKey NotFound NoSuchBucket ContainerNotFound ContainerDisabled",
        WrongRegionError: "AuthorizationHeaderMalformed PermanentRedirect IllegalLocationConstraintException",
        AccessDeniedError: "PublicAccessNotPermitted UserProjectMissing",
        UnsupportedRequestError: "NotImplemented MethodNotAllowed",
        StorageError: "InvalidObjectState BlobArchived",
    }.items()
    for code in codes.split()
}
_STATUSES: dict[int, type[StorageError]] = {
    **dict.fromkeys((401, 403), AccessDeniedError),
    **dict.fromkeys((408, 425, 429, 500, 502, 503, 504), TransientStorageError),
    **dict.fromkeys((405, 501), UnsupportedRequestError),
    404: ObjectNotFoundError,
    412: ObjectChangedError,
    416: RangeNotSatisfiableError,
}
_ADVICE: dict[object, str] = {
    ExpiredCredentialsError: "Renew the credentials, and check this machine's clock.",
    WrongRegionError: "The bucket is in another region: pass storage_options={'region': ...}, or set "
    "AWS_DEFAULT_REGION. For another server than AWS, check endpoint_url.",
    "InvalidObjectState": "The object is archived: restore it (aws s3api restore-object).",
}
_EXISTS_CODES = {"BlobAlreadyExists", "UnauthorizedBlobOverwrite", "ConditionNotMet", "TargetConditionNotMet"}
_MISSING = {
    "NoSuchBucket": "bucket. Check its name, and endpoint_url (storage_options or the environment).",
    **dict.fromkeys(
        ("ContainerNotFound", "ContainerDisabled"),
        "container. Check its name, and account_name (storage_options or the environment).",
    ),
}
_OVERLOADED = {"SlowDown", "ServerBusy", "OperationTimedOut", 429, 503}


def _store_of(url: str) -> str:
    return _STORES.get(url.partition("://")[0], "")


def from_status(
    status: int,
    code: str,
    url: str,
    *,
    writing: bool = False,
    retry_after: str | None = None,
    said: str = "",
) -> StorageError:
    """Make the error for an HTTP status and the error code of a store.

    Args:
        status: of the response.
        code: such as ``SlowDown`` or ``BlobNotFound``, or empty.
        url: of the request.
        writing: whether the request would have written an object.
        retry_after: the header, if the library shows it.
        said: the store's own words.
    """
    url, said, store = redact(url), " ".join(said.split())[:_MAX_SAID].rstrip("."), _store_of(url)
    message = f"{url}: the store answered {status} {code}".rstrip() + (f": {said}." if said else ".")
    kind = _CODES.get(code) or _STATUSES.get(status, StorageError)
    if status == 401 and (store == "gs" or (store == "az" and not code)):  # whose token is not valid
        kind = ExpiredCredentialsError
    elif writing and (status == 412 or code in _EXISTS_CODES or (status == 409 and not code)):
        return ObjectExistsError(f"{url} exists already, and is not overwritten without overwrite=True.", url=url)
    elif status in (301, 307) and store == "s3":
        kind = WrongRegionError
    if kind is ObjectNotFoundError:
        return ObjectNotFoundError(f"{url}: no such {_MISSING.get(code, 'object.')}", url=url)
    if kind is ObjectChangedError:
        return ObjectChangedError(f"{url} was replaced while it was being read. List it again.", url=url)
    denied = _DENIED.get(store, _DENIED[""]) if kind is AccessDeniedError else ""
    error = kind(f"{message} {denied or _ADVICE.get(kind) or _ADVICE.get(code, '')}".rstrip(), url=url)
    if isinstance(error, TransientStorageError):
        error.overloaded = not _OVERLOADED.isdisjoint((status, code))
        if retry_after is not None and retry_after.strip().isdecimal():  # no date
            error.retry_after_s = float(retry_after)
    return error


# Requests without a usable response

# In the texts of OpenSSL and rustls, of urllib3, aiohttp, botocore and hyper, of glibc, musl, macOS and Windows
_CERTIFICATE = re.compile("(?i)certificate.?verify.?failed|InvalidCertificate|CertificateError")
_REDIRECTS = re.compile("(?i)too ?many ?redirects")
_UNKNOWN_HOST = re.compile(
    "(?i)name or service not known|no address associated|name does not resolve|nodename nor servname|Errno 1100|"
    "getaddrinfo failed|temporary failure in name resolution|(?-i:Try again)|EAI_AGAIN"
)
_REFUSED = re.compile(
    "(?i)connection ?refused|ECONNREFUSED|connect call failed|no route to host|network is unreachable"
)
_NO_TUNNEL = re.compile("ProxyAuthRequired|TunnelUnsuccessful|Tunnel connection failed")
_NOT_HTTP = re.compile(
    "(?i)bad ?status ?line|invalid ?header|unmatching values|duplicate content-length|invalid character in content-|"
    r"wrong.version.number|RECORD_LAYER_FAILURE|InvalidContentType|UnsupportedProtocol|Parse\(|ResponseParserError"
)
_SERVER = re.compile(r"https?://([^/\s\"'<>?]+)|connect to host ([^\s\"']+)|host='([^']+)'(?:, port=(\d+))?")
_known_hosts: set[str] = set()  # scheme and bucket or host, of those that have responded


def mark_host_known(url: str) -> None:
    """Record that the host of a URL has responded: its name exists, although a name server may fail later."""
    _known_hosts.add(host_of(url))


def details_of(error: BaseException) -> str:
    """All texts of a library's error and of the errors that caused it, in which :func:`network_error` searches."""
    found: list[str] = []
    current: BaseException | None = error
    while current is not None and len(found) < _MAX_CAUSES:
        found.append(f"{current} {current!r}")
        current = current.__cause__ or current.__context__
    return " ".join(found)


def network_error(url: str, what: str, details: str) -> StorageError:
    """Make the error for a request without a response, or with one that is not HTTP.

    A refused or reset connection is transient. A violation of the protocol may be the mistake of a proxy, an unknown
    host name that of a host that is being set up, and a name server that does not respond may be starting: these are
    retried a few times only. A host that has responded once is never unknown.

    Args:
        url: of the request.
        what: the library's message, without secrets.
        details: all texts of the library's error, in which the cause is searched.
    """
    shown, what, scheme = redact(url), what.rstrip("."), url.partition("://")[0]
    if _CERTIFICATE.search(details):
        of_s3 = "AWS_CA_BUNDLE, ca_bundle of ~/.aws/config, or storage_options={'client_kwargs': {'verify': ...}}"
        return StorageError(
            f"{shown}: {what}. The server's certificate is not trusted. Name a file with its authority in "
            f"{of_s3 if scheme in S3 else 'SSL_CERT_FILE or REQUESTS_CA_BUNDLE'}, and check host name and clock.",
            url=shown,
        )
    if _REDIRECTS.search(details):
        return StorageError(f"{shown}: {what}. Use the URL at which the object is stored.", url=shown)
    found, host = _SERVER.search(details), host_of(url)
    server = ":".join(filter(None, found.groups())).rpartition("@")[2] if found else host.partition("://")[2]
    unknown, refused = _UNKNOWN_HOST.search(details) is not None, _REFUSED.search(details) is not None
    no_tunnel = _NO_TUNNEL.search(details) is not None
    message = (
        f"{shown}: {what}."
        + " The proxy opens no connection to the server, or asks for a user and a password." * no_tunnel
    )
    if unknown or refused:
        why = f"No name server knows {server}, or none answers" if unknown else f"{server} refuses connections"
        where = "the URL, in storage_options (endpoint_url) or in the environment"
        message = f"{shown}: {why} ({what}). Check the host in {where}, the port, and whether the server runs."
    transient = TransientStorageError(message, url=shown)
    transient.unreachable = server if unknown or refused else ""
    is_doubtful = no_tunnel or _NOT_HTTP.search(details) is not None
    transient.likely_permanent = is_doubtful or (unknown and host not in _known_hosts)
    return transient


def unusable_response(url: str, what: str) -> TransientStorageError:
    """Make the error for a response that cannot be used: retried a few times, since a proxy may have made it."""
    return UnreadableResponseError(f"{redact(url)}: {what}.", url=redact(url))


# Tables of libraries

_STATUS = re.compile(r"status code: (\d{3})")
_ELEMENT = re.compile(r"<(Code|Message)>([^<]*)</")
_KIND = re.compile(r"kind: (Timeout|Interrupted|Connect|Request|Decode)\b")
_QUERY = re.compile(r"\?[^\s'\")]*")


def status_and_code(text: str) -> tuple[int | None, str]:
    """Return the status and the code of XML in the text of an error of obstore; ``None`` and ``""`` without them.

    >>> status_and_code("Server returned non-2xx status code: 404 Not Found: <Error><Code>NoSuchKey</Code></Error>")
    (404, 'NoSuchKey')
    """
    status = _STATUS.search(text)
    return (int(status[1]) if status else None), dict(_ELEMENT.findall(text)).get("Code", "")


def from_obstore(error: Exception, url: str, *, writing: bool = False) -> Exception:
    """Convert an error of obstore, most of which contain the cause in their text only."""
    text, shown = str(error), redact(url)
    line, kind = text.partition("\n")[0], type(error).__name__
    status, code = status_and_code(text)
    if "redirect without LOCATION" in text:
        status = 301
    if status is not None or kind == "AlreadyExistsError":
        found = dict(_ELEMENT.findall(text))
        return from_status(status or 412, code, url, writing=writing, said=html.unescape(found.get("Message", "")))
    is_own = type(error).__module__ == "obstore.exceptions"
    if not is_own and not isinstance(error, OSError):
        return from_library(error, url)
    if kind in ("UnauthenticatedError", "PermissionDeniedError"):
        advice = "Log in again, or check the AWS environment."
        return AccessDeniedError(f"{shown}: the credentials could not be loaded: {line}. {advice}", url=shown)
    if "list response" in line:
        return unusable_response(url, line)
    if is_own and ("HttpError" not in text or "Parse(" in text):  # a response came, which obstore refuses
        return UnreadableResponseError(f"{shown}: {line}.", url=shown)
    cause, of_request = line.partition(" - ")[2] or line, _KIND.search(text)
    cause += f" ({of_request[1]})" if of_request else ""
    return network_error(url, cause.replace(url, shown), text)


# In the names of an exception's classes
_NO_FILE = re.compile("FileNotFound|NotADirectory|IsADirectory|ResourceNotFound")
_NO_LOGIN = re.compile("Permission|Credential|ProfileNotFound|RefreshError|Authentication")
_REFUSED_LOGIN = re.compile("(?i)530|550.*(permission|denied|not allowed|forbidden)|No authentication methods")
# Of a library's own code, or of how it is called; others may pass
_PROGRAMMING_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, NotImplementedError),
    *(ImportError, StopIteration),
)


def from_library(error: Exception, url: str, *, writing: bool = False, transient: bool = True) -> Exception:
    """Convert an error of another library by its HTTP status, its class or its message.

    Args:
        error: as raised.
        url: of the request.
        writing: whether the request would have written an object.
        transient: whether an unknown ``OSError`` is retried, as on a network; not of local files.
    """
    text, shown, cause = str(error), redact(url), error.__cause__
    what = f"{type(error).__name__}: {_QUERY.sub('', text)}"  # which may be a signature
    if isinstance(error, FileNotFoundError) and transient:
        is_missing = isinstance(cause, FileNotFoundError | LookupError | StopIteration)
        if isinstance(cause, Exception) and not is_missing:  # fsspec's http and ftp report it for every error
            return to_package_error(cause, url)
    status, code, more = _response_of(error)
    if status >= 300:
        return from_status(status, code, url, writing=writing, **more)
    if isinstance(error, FileExistsError):
        return from_status(412, "", url, writing=True)
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "error_perm" in kinds or "SSHException" in kinds:  # of ftp and sftp
        kinds = "Permission" if _REFUSED_LOGIN.match(text) else "FileNotFound" if text.startswith("550") else kinds
    if _NO_FILE.search(kinds):
        return ObjectNotFoundError(f"{shown}: no such {'object' if transient else 'file'}.", url=shown)
    if _NO_LOGIN.search(kinds):
        advice = _DENIED.get(_store_of(url), _DENIED[""])
        return AccessDeniedError(f"{shown}: access denied ({what}). {advice}", url=shown)
    if isinstance(error, EOFError) and not transient:  # truncated since
        return from_status(412, "", url)
    if not transient or "error_perm" in kinds or isinstance(error, _PROGRAMMING_ERRORS):
        return StorageError(f"{shown}: {what}", url=shown)
    return network_error(url, what, details_of(error))


def _response_of(error: Exception) -> tuple[int, str, dict[str, Any]]:
    """Return status, code and details of a response, in the attributes that libraries use."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # of botocore
        about, problem = response.get("ResponseMetadata", {}), response.get("Error", {})
        headers, code = about.get("HTTPHeaders", {}), str(problem.get("Code", ""))
        more = {"retry_after": headers.get("retry-after"), "said": str(problem.get("Message", ""))}
        status = int(about.get("HTTPStatusCode", 0))
        return status, code.removeprefix(str(status)), more  # which botocore repeats where there is no body
    for holder in (error, error.__cause__, response):
        for name in ("status", "status_code", "code"):
            found = getattr(holder, name, None)
            if isinstance(found, int) and 100 <= found <= 599:
                return found, "", {}
    return 0, "", {}


# Filesystems of fsspec that cannot be made


def unusable_options(scheme: str, bucket: str, error: Exception, options: Iterable[str]) -> UrlError:
    """Make the error for a filesystem that cannot be made: of a wrong host or port in the URL, or wrong options."""
    url, text = f"{scheme}://{bucket}", str(error).rstrip(".")
    what = f" Check host, port, and the kinds of the values in storage_options ({', '.join(sorted(options))})."
    return UrlError(f"{url}: {type(error).__name__}: {text}.{what}", url=url)


def unknown_scheme(scheme: str, bucket: str, error: Exception, known: Iterable[str]) -> UrlError:
    """Make the error for a scheme that fsspec does not know, or whose package is missing."""
    url = f"{scheme}://{bucket}"
    if isinstance(error, ImportError):
        return UrlError(f"{url}: the package that reads {scheme!r} is missing: {error}.", url=url)
    near = did_you_mean(scheme, known) or "."
    return UrlError(
        f"{url}: no transport for the scheme {scheme!r}{near} Known are s3, http, https, datasets, hf, file, memory, "
        "local paths, and the protocols for which fsspec has a package.",
        url=url,
    )
