"""Convert exceptions of libraries, and refusals of stores, to this package's errors.

A table ``from_...`` for each library returns an error of this package, or the exception unchanged if it says no more
than its class: ``to_package_error`` converts those. ``from_status`` knows what the statuses and codes of stores mean.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Callable, Iterable, Iterator

from ..core.arguments.suggestions import did_you_mean
from ..core.notices.slow_notice import host_of
from ..core.object_version import split_version
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
from .protocol import (
    RangeNotSatisfiableError,
    RedirectWithoutLocationError,
    UnreadableResponseError,
    UnsupportedRequestError,
    WrongRegionError,
)

Table = Callable[..., Exception]
_WITH_QUERY = re.compile(r"https?://[^\s'\"<>()]+\?")  # such as where a response redirects to
_MAX_CAUSES, _MAX_SAID = 8, 500  # exceptions in a chain, characters of a store's message


@contextlib.contextmanager
def translate_errors(table: Table, url: str, **options: bool) -> Iterator[None]:
    """Raise what a library raises in the block as this package's errors: no other exception leaves it.

    Args:
        table: converts the library's exceptions.
        url: of the request.
        options: of the table.
    """
    try:
        yield
    except (RemoteDataError, MemoryError):
        raise
    except Exception as error:
        converted = to_package_error(table, error, url, **options)
        details = details_of(error)
        may_be_signed = _WITH_QUERY.search(details) is not None and _store_of(url) != "s3"
        if url != redact(url) or details != redact_text(details) or may_be_signed:
            raise converted from None  # the library's message may contain what is cut from the URL
        raise converted from error


def to_package_error(table: Table, error: Exception, url: str, **options: bool) -> Exception:
    """Convert an exception by a table, or else by its HTTP status, its class or its message."""
    known = table(error, url, **options)
    converted = known if isinstance(known, RemoteDataError) else _from_unknown(error, url)
    converted.args = (redact_text(str(converted)),)  # such as the address of a proxy, with its password
    return converted


# Responses of stores

_STORES = {
    **dict.fromkeys(S3, "s3"),
    **dict.fromkeys(GS, "gs"),
    **dict.fromkeys(AZURE, "az"),
    **dict.fromkeys(HTTP, "http"),
}
_TRANSIENT_STATUSES, _OVERLOADED_STATUSES = {408, 425, 429, 500, 502, 503, 504}, {429, 503}
_OVERLOADED_CODES = {"SlowDown", "ServerBusy", "OperationTimedOut"}
_TRANSIENT_CODES = _OVERLOADED_CODES | {
    *("RequestTimeout", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict", "ThrottlingException"),
    *("KMS.ThrottlingException", "ContainerBeingDeleted", "AccountBeingCreated"),
}
_EXPIRED_CODES = {
    *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestTimeTooSkewed", "RequestExpired"),
    "InvalidAuthenticationInfo",
}
_EXPIRED_SIGNATURE = re.compile("not valid in the specified time frame|Lifetime validation failed|(has|is) expired")
_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound", "ContainerDisabled"}
_EXISTS_CODES = {"BlobAlreadyExists", "UnauthorizedBlobOverwrite", "ConditionNotMet", "TargetConditionNotMet"}
_VERSION_CODES = {"", "400", "InvalidArgument", "NoSuchVersion"}  # of AWS for a version that does not exist
_RENEW = "Renew the credentials, and check this machine's clock."
_PAYER = (
    "The owner of the bucket has others pay for requests: pass storage_options={'requester_pays': 'my-project'}, a "
    "project in which you may use services (serviceusage.services.use)."
)
# What the codes of S3 and Google (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html) and of Azure
# (https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes) mean, and a remedy
_BY_CODE: dict[str, tuple[type[StorageError], str]] = {
    "InvalidObjectState": (StorageError, "The object is archived: restore it (aws s3api restore-object)."),
    "BlobArchived": (StorageError, "The object is in the archive tier, where it cannot be read. Rehydrate it first."),
    "InvalidAccessKeyId": (
        AccessDeniedError,
        "This store does not know the access key. Check 'key', and that endpoint_url is its server.",
    ),
    "SignatureDoesNotMatch": (
        AccessDeniedError,
        "The secret is not that of the access key: check 'secret', also for a missing character.",
    ),
    **dict.fromkeys(
        ("UserProjectMissing", "UserProjectAccessDenied", "UserProjectAccountProblem"), (AccessDeniedError, _PAYER)
    ),
    "PublicAccessNotPermitted": (
        AccessDeniedError,
        "The account allows no anonymous access: credentials are needed instead of anon=True.",
    ),
    "AuthorizationPermissionMismatch": (
        AccessDeniedError,
        "The identity needs a role for data, such as 'Storage Blob Data Contributor', or the SAS more permissions.",
    ),
    "AuthenticationFailed": (
        AccessDeniedError,
        "The account key or the SAS is not valid for this account and container.",
    ),
    **dict.fromkeys(("NotImplemented", "MethodNotAllowed"), (UnsupportedRequestError, "")),
}
_REGION_CODES = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
_KMS = (
    "The object is encrypted: its key of KMS must be enabled, and the credentials need kms:Decrypt for it, or "
    "kms:GenerateDataKey to write."
)
_DENIED = {
    "s3": "Check the credentials (storage_options or the AWS environment) and their rights; a public bucket needs "
    "storage_options={'anon': True}.",
    "gs": "The account needs a role for the bucket: Storage Object Viewer to read, Storage Object User to write too. A "
    "public bucket needs storage_options={'token': 'anon'}.",
    "az": "Check the credentials (storage_options or the environment) and their rights.",
    "http": "Check the path, and whether a signed URL has expired or the server asks for a login.",
    "": "Check the credentials in storage_options, and their rights.",
}
_BUCKET = {
    "gs": "endpoint_url (storage_options or STORAGE_EMULATOR_HOST; none means Google) is the server",
    "az": "the account (account_name, AZURE_STORAGE_ACCOUNT_NAME or the connection string) is the one",
    "s3": "endpoint_url (storage_options, AWS_ENDPOINT_URL or ~/.aws/config; none means AWS) is the server",
}
_MISSING = {
    "http": "no such object: the server answered 404. Check host and path.",
    "az": "no such object. Azure gives this answer to anonymous requests for what is private, too.",
}


def _store_of(url: str) -> str:
    return _STORES.get(url.partition("://")[0], "")


def from_status(
    status: int,
    code: str,
    url: str,
    *,
    writing: bool = False,
    retry_after: str | None = None,
    region: str | None = None,
    said: str = "",
    details: str = "",
) -> StorageError:
    """Make the error for an HTTP status and the error code of a store.

    Args:
        status: of the response.
        code: such as ``SlowDown`` or ``BlobNotFound``, or empty.
        url: of the request.
        writing: whether the request would have written an object.
        retry_after: the header, if the library shows it.
        region: of the bucket, if the store says so.
        said: the store's own words.
        details: all of the response, in which Azure says that a signature has expired. It is not shown.
    """
    url, said, store = redact(url), " ".join(said.split())[:_MAX_SAID].rstrip("."), _store_of(url)
    message = f"{url}: the store answered {status} {code}".rstrip() + (f": {said}." if said else ".")
    if store == "gs" and status == 401:
        login = "Log in again (`gcloud auth application-default login`), or correct 'token' in storage_options."
        return ExpiredCredentialsError(f"{message} The access token is missing, or has expired. {login}", url=url)
    # Azure answers 401 to a token that is not valid; obstore does not show the code of a response without a body
    ended = store == "az" and ((status == 401 and not code) or _EXPIRED_SIGNATURE.search(details))
    if ended or code in _EXPIRED_CODES:
        return ExpiredCredentialsError(f"{message} {_RENEW}", url=url)
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES:
        transient = TransientStorageError(message, url=url)
        transient.overloaded = status in _OVERLOADED_STATUSES or code in _OVERLOADED_CODES
        if retry_after is not None and retry_after.strip().isdecimal() and retry_after.isascii():  # no date
            transient.retry_after_s = float(retry_after)
        return transient
    if writing and (status == 412 or code in _EXISTS_CODES or (status == 409 and not code)):
        return ObjectExistsError(f"{url} exists already, and is not overwritten without overwrite=True.", url=url)
    if code in _REGION_CODES or (status in (301, 307) and store == "s3"):
        where = "another region" if region is None else f"the region {region}"
        return WrongRegionError(
            f"{message} The bucket is in {where}: pass storage_options={{'region': {region or '...'!r}}}, or set "
            "AWS_DEFAULT_REGION. For another server than AWS, check endpoint_url.",
            url=url,
        )
    return _missing(status, code, url, store) or _refused(status, code, url, store, message, said)


def _missing(status: int, code: str, url: str, store: str) -> ObjectNotFoundError | None:
    """Make the error for a bucket, an object or a version that does not exist; ``None`` if it is another one."""
    version = split_version(url)[1] if store == "s3" else None
    if version is not None and (status == 405 or (status == 400 and code in _VERSION_CODES)):  # 405: it was deleted
        hint = "If ?versionId= is a part of the key, add ?versionId= after it."
        return ObjectNotFoundError(f"{url}: no such version {version!r}. {hint}", url=url)
    if code in _BUCKET_CODES:
        bucket, kind = url.partition("://")[2].partition("/")[0], "container" if store == "az" else "bucket"
        where = f"Check its spelling, and that {_BUCKET.get(store, _BUCKET['s3'])} that has it."
        return ObjectNotFoundError(f"{url}: no such {kind}: {bucket!r}. {where}", url=url)
    if status == 404 or code in ("NoSuchKey", "NotFound"):
        return ObjectNotFoundError(f"{url}: {_MISSING.get(store, 'no such object.')}", url=url)
    return None


def _refused(status: int, code: str, url: str, store: str, message: str, said: str) -> StorageError:
    if code in _BY_CODE:
        kind, remedy = _BY_CODE[code]
        return kind(f"{message} {remedy}".rstrip(), url=url)
    if status in (401, 403) or code.startswith("KMS."):
        advice = _KMS if code.startswith("KMS.") or "kms:" in said else _DENIED[store]
        return AccessDeniedError(f"{message} {advice}", url=url)
    if status == 407:
        return _refused_by_proxy(url)
    if status == 412:
        return ObjectChangedError(f"{url} was replaced while it was being read. List it again.", url=url)
    if status == 416:
        return RangeNotSatisfiableError(message, url=url)
    if status in (405, 501):
        return UnsupportedRequestError(message, url=url)
    if status == 400 and not code and store == "s3":
        message += " It gives no reason. Check the region, the session token, and endpoint_url."
    return StorageError(message, url=url)


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
_NO_TUNNEL = re.compile("TunnelUnsuccessful|Tunnel connection failed")
_PROXY_LOGIN = re.compile("ProxyAuthRequired|Tunnel connection failed: 407")
_NOT_HTTP = re.compile(
    "(?i)bad ?status ?line|invalid ?header|unmatching values|duplicate content-length|invalid character in content-|"
    r"wrong.version.number|RECORD_LAYER_FAILURE|InvalidContentType|UnsupportedProtocol|Parse\(|ResponseParserError"
)
_SERVER = re.compile(r"https?://([^/\s\"'<>?]+)|connect to host ([^\s\"']+)|host='([^']+)'(?:, port=(\d+))?")
_TO_CHECK = {
    "s3": "the endpoint_url (in storage_options, AWS_ENDPOINT_URL or ~/.aws/config), the region",
    "http": "the host of the URL",
    "https": "the host of the URL",
    "datasets": "that `torchdata-remote serve` runs there, the host of the URL",
    "hf": "the Hub's address (endpoint in storage_options, or HF_ENDPOINT)",
}
_known_hosts: set[str] = set()  # scheme and bucket or host, of those that have responded


def mark_host_known(url: str) -> None:
    """Record that the host of a URL has responded: its name exists, although a name server may fail later."""
    _known_hosts.add(host_of(url))


def details_of(error: BaseException) -> str:
    """All texts of a library's error and of the errors that caused it, in which :func:`network_error` searches."""
    found: list[str] = []
    current: object = error
    while isinstance(current, BaseException) and len(found) < _MAX_CAUSES:
        found.append(f"{current} {current!r}")
        # botocore keeps the cause among its arguments, urllib3 as the reason
        of_botocore = getattr(current, "kwargs", {}).get("error")
        current = of_botocore or getattr(current, "reason", None) or current.__cause__ or current.__context__
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
        advice = "too many redirects. Use the URL at which the object is stored."
        return StorageError(f"{shown}: {what}: {advice}", url=shown)
    if _PROXY_LOGIN.search(details):
        return _refused_by_proxy(url)
    unknown, refused, no_tunnel = (bool(one.search(details)) for one in (_UNKNOWN_HOST, _REFUSED, _NO_TUNNEL))
    check = _TO_CHECK.get("s3" if scheme in S3 else scheme, "the host in the URL or in storage_options")
    server, message = _server(url, details), f"{shown}: {what}."
    if unknown:
        message = f"{shown}: No name server knows {server}, or none answers. Check {check} and the spelling ({what})."
    elif refused:
        message = f"{shown}: {server} refuses connections ({what}). Check {check} and the port."
    elif no_tunnel:
        message = (
            f"{shown}: the proxy opens no connection to the server ({what}). Check {check}, and whether the proxy "
            "allows that host; NO_PROXY names hosts that need none."
        )
    transient = TransientStorageError(message, url=shown)
    transient.unreachable = server if unknown or refused else ""
    is_new = host_of(url) not in _known_hosts
    transient.likely_permanent = (unknown and is_new) or no_tunnel or _NOT_HTTP.search(details) is not None
    return transient


def _server(url: str, details: str) -> str:
    """The host that was asked, with its port if it has one."""
    found = _SERVER.search(details)
    if found is None:
        return host_of(url).partition("://")[2]
    return ":".join(filter(None, found.groups())).rpartition("@")[2]


def _refused_by_proxy(url: str) -> StorageError:
    return StorageError(
        f"{redact(url)}: the proxy asks for a user and a password, or refuses those that it got (407). They belong "
        "into its URL, before the host and an @: user:password@host:3128. A @, : or / in them is written as %40, %3A "
        "or %2F.",
        url=redact(url),
    )


def unusable_response(url: str, what: str) -> TransientStorageError:
    """Make the error for a response that cannot be used: retried a few times, since a proxy may have made it."""
    error = TransientStorageError(f"{redact(url)}: {what}.", url=redact(url))
    error.likely_permanent = True
    return error


# Tables of libraries

_STATUS = re.compile(r"status code: (\d{3})")
_ELEMENT = re.compile(r"<(Code|Message|Region)>([^<]*)</")
_KIND = re.compile(r"kind: (Timeout|Interrupted|Connect|Request|Decode)\b")
_QUERY = re.compile(r"\?[^\s'\")]*")
_NATIVE_LIBRARY = re.compile(
    r"load lib\w+|cannot open shared object file|DLL load failed|Unable to load (lib\w+|native)|image not found"
)
_REFUSED_FILE = re.compile("(?i)permission|denied|not allowed|forbidden")
_FTP_REPLY = re.compile(r"(\d{3})\b")
_NETWORK_PACKAGE = re.compile(
    "aiohttp|asyncio|azure|botocore|fsspec|ftplib|gcsfs|google|h11|h2|http|httpcore|httpx|huggingface_hub|paramiko|"
    "requests|smbprotocol|socket|ssl|urllib|urllib3"
)
_PROGRAMMING_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, NotImplementedError),
)


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
    if status is not None:
        found = {name: html.unescape(value) for name, value in _ELEMENT.findall(text)}
        region, said = found.get("Region"), found.get("Message", "")
        return from_status(status, code, url, writing=writing, region=region, said=said, details=text)
    if kind == "AlreadyExistsError":
        return from_status(412, "", url, writing=True)
    is_own = type(error).__module__ == "obstore.exceptions"
    if not is_own and not isinstance(error, OSError):
        return error
    if "redirect without LOCATION" in text:
        return RedirectWithoutLocationError(f"{shown}: the bucket is in another region, or on another host.", url=shown)
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


def from_urllib3(error: Exception, url: str) -> Exception:
    """Convert an error of urllib3. Queries are cut from its message."""
    from urllib3.exceptions import HTTPError, LocationValueError  # here: it takes as long as NumPy to import

    if isinstance(error, LocationValueError):
        return UrlError(f"{redact(url)}: not an HTTP URL.", url=redact(url))
    if isinstance(error, HTTPError):
        return network_error(url, f"{type(error).__name__}: {_QUERY.sub('', str(error))}", details_of(error))
    return error


def from_botocore(error: Exception, url: str, *, writing: bool = False) -> Exception:
    """Convert an error of botocore."""
    from botocore import exceptions as boto  # here: importing botocore costs a tenth of a second
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    shown, what = redact(url), f"{type(error).__name__}: {error}"
    if isinstance(error, boto.ClientError):
        about, problem = error.response.get("ResponseMetadata", {}), error.response.get("Error", {})
        headers, code = about.get("HTTPHeaders", {}), str(problem.get("Code", ""))
        is_status = code.isdigit()  # of a response without a body
        return from_status(
            int(about.get("HTTPStatusCode", 0)),
            "" if is_status else code,
            url,
            writing=writing,
            retry_after=headers.get("retry-after"),
            region=problem.get("Region") or headers.get("x-amz-bucket-region"),
            said="" if is_status else str(problem.get("Message", "")),
        )
    if isinstance(
        error,
        boto.NoCredentialsError | boto.PartialCredentialsError | boto.CredentialRetrievalError | boto.ProfileNotFound,
    ):
        return AccessDeniedError(
            f"{shown}: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile of ~/.aws/config, or "
            "storage_options={'key':, 'secret':}; a public bucket needs storage_options={'anon': True}.",
            url=shown,
        )
    if isinstance(error, boto.HTTPClientError | boto.ConnectionError | boto.IncompleteReadError | HTTPError):
        return network_error(url, what, details_of(error))
    if isinstance(error, ResponseParserError):
        return unusable_response(url, what.partition("\n")[0])
    return StorageError(f"{shown}: {what}", url=shown) if isinstance(error, boto.BotoCoreError) else error


def from_os(error: Exception, url: str, *, transient: bool) -> Exception:
    """Convert an error of a local or fsspec filesystem.

    Args:
        error: as raised.
        url: of the request.
        transient: whether an unknown ``OSError`` is retried, as on a network.
    """
    shown, cause = redact(url), error.__cause__
    missing = ObjectNotFoundError(f"{shown}: no such {'object' if transient else 'file'}.", url=shown)
    if is_missing_on_webdav(error) or is_missing_on_webdav(cause):
        return missing
    if isinstance(error, FileNotFoundError) and transient:
        # some filesystems report a missing object for every error, such as fsspec's http and ftp
        if isinstance(cause, RemoteDataError):
            return cause
        if isinstance(cause, Exception) and not isinstance(cause, FileNotFoundError | LookupError | StopIteration):
            return to_package_error(from_os, cause, url, transient=True)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return missing
    if isinstance(error, FileExistsError):
        return from_status(412, "", url, writing=True)
    for found in (error, cause):  # s3fs raises an error of botocore, or a builtin one of this cause
        if isinstance(found, Exception) and any(one.__module__.startswith("botocore.") for one in type(found).__mro__):
            return to_package_error(from_botocore, found, url)
    if isinstance(error, PermissionError):
        return AccessDeniedError(f"{shown}: access denied: {error}.", url=shown)
    if isinstance(error, EOFError) and not transient:  # truncated since
        return from_status(412, "", url)
    if isinstance(error, OSError) and not transient:
        return StorageError(f"{shown}: {type(error).__name__}: {error}", url=shown)
    return error


def _from_unknown(error: Exception, url: str) -> StorageError | UrlError:
    """Convert an exception that no table contains, by its HTTP status, its class, or its message."""
    shown, text, what = redact(url), str(error), f"{type(error).__name__}: {error}"
    kinds = type(error).__mro__
    names = {kind.__name__ for kind in kinds}
    status = _status_of(error) or _status_of(error.__cause__)
    reply = _FTP_REPLY.match(text) if "error_perm" in names else None
    ftp = reply[1] if reply else ""
    if status is not None and status >= 300:
        return from_status(status, "", url)
    is_refused = ftp == "530" or (ftp == "550" and _REFUSED_FILE.search(text))
    if (
        is_refused
        or "No authentication methods available" in text
        or names
        & {  # paramiko's SSHException
            *("DefaultCredentialsError", "AuthenticationException", "AuthenticationError", "ClientAuthenticationError"),
            "RefreshError",
        }
    ):
        return AccessDeniedError(f"{shown}: access denied ({what}). Check the credentials and their rights.", url=shown)
    if ftp == "550":
        return ObjectNotFoundError(f"{shown}: no such object ({what}).", url=shown)
    if names & {"error_reply", "error_proto"}:  # replies of ftp that are out of order
        return unusable_response(url, what)
    of_network = names & {"OSError", "EOFError", "TimeoutError", "CancelledError"} or any(
        _NETWORK_PACKAGE.fullmatch(kind.__module__.partition(".")[0]) for kind in kinds
    )
    if of_network and not ftp and not isinstance(error, _PROGRAMMING_ERRORS) and not _NATIVE_LIBRARY.search(text):
        return network_error(url, what, details_of(error))
    return StorageError(f"{shown}: {what}. The library failed in a way that a retry does not change.", url=shown)


def _status_of(error: BaseException | None) -> int | None:
    """HTTP status of an error, in the attribute that its library uses."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code")):
        found = getattr(holder, name, None)
        if isinstance(found, int) and 100 <= found <= 599:
            return int(found)
    return None


# Filesystems of fsspec that cannot be made

_MISSING_ARGUMENTS = re.compile(r"missing \d+ required [\w-]+ arguments?: (.*)")
_KNOWN_SCHEMES = ("s3", "http", "https", "datasets", "hf", "file", "memory")
_S3_SERVERS = {"s3n", "aws", "minio", "ceph", "r2", "b2", "wasabi", "oss", "swift"}  # words for servers of s3


def is_missing_on_webdav(error: BaseException | None) -> bool:
    """Whether an error of webdav4 says that a file or folder is missing; it is no ``OSError``."""
    kind = type(error)
    return kind.__name__ == "ResourceNotFound" and kind.__module__.startswith("webdav4.")


def unusable_options(scheme: str, bucket: str, error: Exception, options: Iterable[str]) -> UrlError:
    """Make the error for a filesystem that cannot be made: of a wrong host or port in the URL, or wrong options."""
    url, text = f"{scheme}://{bucket}", str(error).rstrip(".")
    what = f" Check host, port, and the kinds of the values in storage_options ({', '.join(sorted(options))})."
    if missing := _MISSING_ARGUMENTS.search(str(error)):
        what = f" Pass {missing[1]} by storage_options."
    return UrlError(f"{url}: {type(error).__name__}: {text}.{what}", url=url)


def unknown_scheme(scheme: str, bucket: str, error: Exception, known: Iterable[str]) -> UrlError:
    """Make the error for a scheme that fsspec does not know, or whose package is missing."""
    url = f"{scheme}://{bucket}"
    if isinstance(error, ImportError):
        return UrlError(f"{url}: the package that reads {scheme!r} is missing: {error}.", url=url)
    near = did_you_mean(scheme, [*_KNOWN_SCHEMES, *known]) or "."
    if scheme in _S3_SERVERS:
        near = "; did you mean 's3'? Pass the address of the server by storage_options={'endpoint_url': ...}."
    return UrlError(
        f"{url}: no transport for the scheme {scheme!r}{near} Known are s3, http, https, datasets, hf, file, memory, "
        "local paths, and the protocols for which fsspec has a package.",
        url=url,
    )
