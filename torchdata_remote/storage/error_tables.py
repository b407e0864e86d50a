"""Convert the errors of each transport to those of this package."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeGuard

from ..core.arguments.suggestions import did_you_mean
from ..core.urls import redact
from ..errors import AccessDeniedError, ObjectNotFoundError, RemoteDataError, StorageError, UrlError
from .errors import from_status, from_unknown, to_package_error
from .network_errors import details_of, network_error, unusable_response
from .protocol import RedirectWithoutLocationError, UnreadableResponseError

_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"kind: (Timeout|Interrupted|Connect|Request|Decode)\b")
_UNREADABLE = re.compile(
    r"Header missing from response|Content-Range header not present|Failed to parse value for CONTENT_RANGE|"
    r"Received non-partial response|Range request not supported|Wanted range starting at|Requested \d+\.\.|"
    r"Invalid last modified|Invalid content length|contained non UTF-8 characters|containing non-ASCII data|"
    r"hyper::Error\(\s*Parse\("
)
_NATIVE_LIBRARY = re.compile(
    r"load lib\w+|cannot open shared object file|DLL load failed|Unable to load (lib\w+|native)|image not found"
)
KINDS_OF_VALUES = "Check the kinds of the values in storage_options"
_MISSING_ARGUMENTS = re.compile(r"missing \d+ required [\w-]+ arguments?: (.*)")
_HADOOP = {"hdfs", "viewfs", "har"}
_OWN = ("s3", "http", "https", "datasets", "hf", "file", "memory")
_S3_SERVERS = {"s3n", "aws", "minio", "ceph", "r2", "b2", "wasabi", "oss", "swift"}  # words for servers of s3
_QUERY = re.compile(r"\?[^\s'\")]*")
_CODE = re.compile(r"<Code>([\w.]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_REGION = re.compile(r"<Region>([\w-]+)</Region>")


def from_botocore(error: Exception, url: str, *, writing: bool = False) -> Exception:
    """Convert an error of botocore."""
    from botocore import exceptions as boto  # here: importing botocore costs a tenth of a second
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    shown = redact(url)
    if isinstance(error, boto.ClientError):
        about = error.response.get("ResponseMetadata", {})
        problem = error.response.get("Error", {})
        code = str(problem.get("Code", ""))
        return from_status(
            int(about.get("HTTPStatusCode", 0)),
            "" if code.isdigit() else code,
            url,
            writing=writing,
            retry_after=about.get("HTTPHeaders", {}).get("retry-after"),
            region=problem.get("Region") or about.get("HTTPHeaders", {}).get("x-amz-bucket-region"),
            said="" if code.isdigit() else str(problem.get("Message", "")),
        )
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.CredentialRetrievalError):
        return AccessDeniedError(
            f"{shown}: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or "
            "storage_options={'key':, 'secret':}; a public bucket needs storage_options={'anon': True}.",
            url=shown,
        )
    if isinstance(error, boto.ProfileNotFound):
        return AccessDeniedError(f"{shown}: {error}. See ~/.aws/config.", url=shown)
    if isinstance(error, boto.ParamValidationError):
        return UrlError(f"{shown}: {error}", url=shown)
    if isinstance(error, boto.HTTPClientError | boto.ConnectionError | boto.IncompleteReadError | HTTPError):
        return network_error(url, f"{type(error).__name__}: {error}", details_of(error))
    if isinstance(error, ResponseParserError):
        return unusable_response(url, f"{type(error).__name__}: {_first_line(str(error))}")
    if isinstance(error, boto.BotoCoreError):
        return StorageError(f"{shown}: {type(error).__name__}: {error}", url=shown)
    return error


def status_and_code(text: str) -> tuple[int | None, str]:
    """Return the status and the code of XML in the text of an error of obstore; ``None`` and ``""`` without them.

    >>> status_and_code("Server returned non-2xx status code: 404 Not Found: <Error><Code>NoSuchKey</Code></Error>")
    (404, 'NoSuchKey')
    """
    status, code = _STATUS.search(text), _CODE.search(text)
    return (int(status[1]) if status else None), (code[1] if code else "")


def from_obstore(error: Exception, url: str) -> Exception:
    """Convert an error of obstore. Its generic errors contain the cause in their text only."""
    text = str(error)
    status, code = status_and_code(text)
    if status is not None:
        region, said = _REGION.search(text), _MESSAGE.search(text)
        return from_status(
            status, code, url, region=region[1] if region else None, said=html.unescape(said[1]) if said else ""
        )
    if "redirect without LOCATION" in text:
        return RedirectWithoutLocationError(
            f"{redact(url)}: the bucket is in another region, or on another host.", url=redact(url)
        )
    if _UNREADABLE.search(text):
        return UnreadableResponseError(f"{redact(url)}: {text.partition(chr(10))[0]}.", url=redact(url))
    if type(error).__name__ in ("UnauthenticatedError", "PermissionDeniedError"):
        return AccessDeniedError(
            f"{redact(url)}: the credentials could not be loaded: {_first_line(text)}. Log in again, or check the "
            "AWS environment.",
            url=redact(url),
        )
    if isinstance(error, OSError) or type(error).__module__ == "obstore.exceptions":
        cause = text.partition("\n")[0].partition(" - ")[2] or text.partition("\n")[0]
        kind = _KIND.search(text)
        cause += f" ({kind[1]})" if kind else ""
        return network_error(url, cause.replace(url, redact(url)), text)
    return error


def from_urllib3(error: Exception, url: str) -> Exception:
    """Convert an error of urllib3. Queries are cut from its message."""
    from urllib3.exceptions import HTTPError, LocationValueError  # here: as above

    if isinstance(error, LocationValueError):
        return UrlError(f"{redact(url)}: not an HTTP URL.", url=redact(url))
    if isinstance(error, HTTPError):
        message = _QUERY.sub("", str(error))
        return network_error(url, f"{type(error).__name__}: {message}", f"{error!r} {getattr(error, 'reason', '')!r}")
    return error


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def from_os(error: Exception, url: str, *, transient: bool) -> Exception:
    """Convert an error of a local or fsspec filesystem.

    Args:
        error: as raised.
        url: of the request.
        transient: whether an unknown ``OSError`` is retried, as on a network.
    """
    shown = redact(url)
    if is_missing_on_webdav(error) or is_missing_on_webdav(error.__cause__):
        return ObjectNotFoundError(f"{shown}: no such object.", url=shown)
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None and transient:
        # some filesystems report a missing object for every error, such as fsspec's http and ftp
        cause = error.__cause__
        if isinstance(cause, RemoteDataError):
            return cause
        if isinstance(cause, Exception) and not isinstance(cause, FileNotFoundError | LookupError | StopIteration):
            return to_package_error(from_os, cause, url, transient=True)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        what = "object" if transient else "file"
        return ObjectNotFoundError(f"{shown}: no such {what}.", url=shown)
    if isinstance(error, FileExistsError):
        return from_status(412, "", url, writing=True)
    for found in filter(_is_of_botocore, (error, error.__cause__)):  # s3fs raises it, or a builtin one of this cause
        return to_package_error(from_botocore, found, url)
    if isinstance(error, PermissionError):
        return AccessDeniedError(f"{shown}: access denied: {error}.", url=shown)
    if isinstance(error, EOFError) and not transient:  # truncated since
        return from_status(412, "", url)
    if isinstance(error, OSError) and not transient:
        return StorageError(f"{shown}: {type(error).__name__}: {error}", url=shown)
    if isinstance(error, OSError) and _NATIVE_LIBRARY.search(str(error)):
        return _missing_library(error, url)
    return from_unknown(error, url)


def _is_of_botocore(error: object) -> TypeGuard[Exception]:
    return any(kind.__module__.startswith("botocore.") for kind in type(error).__mro__)


def is_missing_on_webdav(error: BaseException | None) -> bool:
    """Whether an error of webdav4 says that a file or folder is missing; it is no ``OSError``."""
    kind = type(error)
    return kind.__name__ == "ResourceNotFound" and kind.__module__.startswith("webdav4.")


def _missing_library(error: Exception, url: str) -> UrlError:
    """Make the error for a shared library that a package needs, and that is not part of it."""
    scheme, shown = url.partition("://")[0], redact(url)
    advice = (
        "Install Java and Hadoop, and set JAVA_HOME, HADOOP_HOME and CLASSPATH (the output of `hadoop classpath "
        "--glob`), or ARROW_LIBHDFS_DIR."
        if scheme in _HADOOP
        else f"Install the library, or the extra that the package for {scheme!r} documents."
    )
    return UrlError(
        f"{shown}: a native library that reads {scheme!r} cannot be loaded: {type(error).__name__}: "
        f"{_first_line(str(error)).rstrip('.')}. {advice}",
        url=shown,
    )


def unusable_options(scheme: str, bucket: str, error: Exception, options: Iterable[str]) -> UrlError:
    """Make the error for a filesystem that cannot be made: of a wrong host or port in the URL, or wrong options."""
    named = ", ".join(sorted(options))
    what = f" Check host, port, and the kinds of the values in storage_options ({named})."
    if missing := _MISSING_ARGUMENTS.search(str(error)):
        what = f" Pass {missing[1]} by storage_options."
    url = f"{scheme}://{bucket}"
    text = str(error).rstrip(".")
    return UrlError(f"{url}: {type(error).__name__}: {text}.{'' if KINDS_OF_VALUES in text else what}", url=url)


def unreadable_file(scheme: str, bucket: str, error: OSError) -> UrlError:
    """Make the error for a local file that an option names, such as a private key."""
    url = f"{scheme}://{bucket}"
    what = f"storage_options name a file that cannot be read: {error.filename!r} ({error.strerror})"
    return UrlError(f"{url}: {what}. Correct its path, or leave it out.", url=url)


def unknown_scheme(scheme: str, bucket: str, error: Exception, known: Iterable[str]) -> UrlError:
    """Make the error for a scheme that fsspec does not know, or whose package is missing."""
    url = f"{scheme}://{bucket}"
    if isinstance(error, ImportError):
        return UrlError(f"{url}: the package that reads {scheme!r} is missing: {error}.", url=url)
    stored = "s3" if scheme in _S3_SERVERS else ""
    near = f"; did you mean '{stored}'?" if stored else did_you_mean(scheme, [*_OWN, *known])
    more = " Pass the address of the server by storage_options={'endpoint_url': ...}." if stored else ""
    return UrlError(
        f"{url}: no transport for the scheme {scheme!r}{near or '.'}{more} Known are s3, http, https, datasets, hf, "
        "file, memory, local paths, and the protocols for which fsspec has a package.",
        url=url,
    )
