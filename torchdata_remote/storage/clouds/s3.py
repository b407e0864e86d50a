"""S3: what options in s3fs's words and the environment of AWS mean for obstore and for s3fs, by botocore's rules."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from botocore import UNSIGNED, exceptions
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.credentials import create_credential_resolver
from botocore.loaders import create_loader
from botocore.session import Session
from obstore.store import S3Store

from ...core import arguments as check
from ...core.arguments import did_you_mean
from ...core.options import FALLBACK_NAMES, StorageOptions
from ...core.urls import key_as_path, keys_as_paths, redact_text, split_version
from ...errors import AccessDeniedError, StorageError, TransientStorageError, UrlError
from ..multipart import UPLOAD_PART_BYTES
from ..network import (
    authorities,
    milliseconds,
    obstore_client_options,
    proxy_for,
    require_client_certificate,
    server_address,
)
from ..obstore_reader import ODD_KEY
from ..obstore_writer import HiddenWriter
from ..options import CLIENT_OF_S3, NESTED_OF_S3, nested
from ..protocol import CONNECT_TIMEOUT_S, CredentialSourceError, WrongRegionError
from .bucket import CloudBucket, Credentials, Issued, require_plain

if TYPE_CHECKING:
    from ..obstore_store import ObstoreStore
    from ..protocol import ObjectWriter

_OF_OPTIONS = "The credentials are from 'key' and 'secret' of storage_options."
_OF_FALLBACK = "The credentials are the fallback credentials of storage_options, as the AWS environment has none."
_ENDPOINT = "endpoint_url in storage_options or ~/.aws/config, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL"
_NOT_SIGNED = "The request was not signed (anon=True)."
_OF_CHAIN = "The credentials are those that botocore finds (environment, ~/.aws, role)."
_EARLY_S = 900.0  # botocore's own time before the end of credentials
_ONCE = {"mode": "standard", "total_max_attempts": 1}  # repeated by this package only
_MOST_CHARACTERS = 300  # of a message, such as all that a command printed
_OVERLOADED = {
    *("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "IDPCommunicationError"),
}
_FLAT = ("key", "secret", "token", "endpoint_url", "region", "profile", "anon", "use_ssl")
_KEY, _OWNER, _PAYER = "SSECustomerKey", "ExpectedBucketOwner", "RequestPayer"
_WRITING = ("PutObject", "CreateMultipartUpload")
_CLIENT_OPTIONS: dict[str, tuple[str, Callable[[Any], str]]] = {  # of config_kwargs, in obstore's words
    "connect_timeout": ("connect_timeout", milliseconds),
    "read_timeout": ("read_timeout", milliseconds),
    "max_pool_connections": ("pool_max_idle_per_host", str),
    "user_agent": ("user_agent", str),
}
_ZONAL = ("--x-s3", "--xa-s3")  # ends of the names of directory buckets, and of their access points
_shared_loader = functools.cache(create_loader)  # each session would read the descriptions of services again


# Options


def _flat(options: StorageOptions) -> dict[str, Any]:
    """Return the options that are no dicts, and those of ``client_kwargs``, by their names of s3fs."""
    client = nested(options, "client_kwargs")
    given = {CLIENT_OF_S3[name]: value for name, value in client.items() if name in CLIENT_OF_S3}
    given |= {name: options[name] for name in _FLAT if options.get(name) is not None}
    for name in given.keys() & {"anon", "use_ssl"}:
        given[name] = check.flag(f"storage_options[{name!r}]", given[name])
    return given


def _keys(options: Mapping[str, Any], url: str, prefix: str = "") -> dict[str, Any]:
    """Return the keys in options as obstore's providers do; nothing without any.

    Raises:
        AccessDeniedError: if one of a pair is missing, or no request can hold one.
    """
    key, secret, token = (options.get(prefix + name) for name in ("key", "secret", "token"))
    if key is secret is token is None:
        return {}
    if key is None or secret is None:
        needs = f"'{prefix}key' and '{prefix}secret' together, and both for '{prefix}token'"
        raise AccessDeniedError(f"{url}: storage_options needs {needs}.", url=url)
    fields = {"access_key_id": key, "secret_access_key": secret, "token": token}
    return dict(require_plain(Issued(fields, _OF_OPTIONS), url).fields)


def _arguments(client: Any, options: StorageOptions, url: str, operations: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of requests. A name that none of the operations has would be left out by s3fs.

    Raises:
        UrlError: names it; and for a key of the user that is none, or that would be sent to AWS in the clear.
    """
    arguments, model = nested(options, "s3_additional_kwargs"), client.meta.service_model
    known = {name for one in operations if arguments for name in model.operation_model(one).input_shape.members}
    for name in sorted(arguments.keys() - known):
        advice = did_you_mean(name, sorted(known)) or ", or it is not for writing: pass backend='fsspec'."
        raise UrlError(f"{url}: unknown option {name!r} in storage_options['s3_additional_kwargs']{advice}", url=url)
    if _KEY in arguments:
        key = arguments[_KEY].encode() if isinstance(arguments[_KEY], str) else arguments[_KEY]
        arguments[_KEY] = key if len(key) == 32 else base64.b64decode(key, validate=True)
        if len(arguments[_KEY]) != 32:
            raise UrlError(f"{url}: SSECustomerKey must have 32 bytes, or be a str with their base64.", url=url)
        if re.match("(?i)http://.*[.]amazonaws[.]", client.meta.endpoint_url):
            raise UrlError(
                f"{url}: SSECustomerKey is sent with each request, and AWS accepts it by https only.", url=url
            )
    is_kms = arguments.get("ServerSideEncryption", "").startswith("aws:kms")
    if not is_kms and arguments.keys() & {"SSEKMSKeyId", "SSEKMSEncryptionContext", "BucketKeyEnabled"}:
        # Not every server refuses it: objects would be stored without the encryption that was meant
        raise UrlError(f"{url}: a key of KMS needs 'ServerSideEncryption': 'aws:kms' or 'aws:kms:dsse'.", url=url)
    return arguments


def _is_of_aws(address: str) -> bool:
    return ".amazonaws." in address


def _session(profile: str | None) -> Any:
    session = Session(profile=profile)
    session.register_component("data_loader", _shared_loader(session.get_config_variable("data_path")))
    return session


def _client(options: StorageOptions, url: str, region: str | None = None) -> tuple[Any, Any]:
    """Make a session and a client of botocore, which read the environment and the files of AWS.

    Args:
        options: of the user.
        url: of the bucket, for errors.
        region: where AWS says that the bucket is, instead of the options' region and address.

    Raises:
        UrlError: if botocore cannot use an option.
        AccessDeniedError: if the profile does not exist.
    """
    given, config = _flat(options), nested(options, "config_kwargs")
    usable = {name: config[name] for name in config.keys() & NESTED_OF_S3["config_kwargs"]}
    settings = Config(**{**usable, "signature_version": UNSIGNED, "retries": _ONCE})
    try:
        session = _session(given.get("profile"))
        client = session.create_client(
            "s3",
            region_name=region or given.get("region"),
            endpoint_url=None if region else given.get("endpoint_url"),
            use_ssl=given.get("use_ssl", True),
            verify=given.get("verify"),
            aws_access_key_id="",  # or botocore asks its sources
            aws_secret_access_key="",
            config=settings,
        )
    except exceptions.ProfileNotFound as error:
        raise AccessDeniedError(f"{url}: {error}. See ~/.aws/config.", url=url) from None
    except exceptions.BotoCoreError as error:
        raise UrlError(f"{url}: storage_options cannot be used: {redact_text(str(error))}", url=url) from None
    except ValueError:  # of the address, which it shows
        server_address(url, "", _ENDPOINT)
    server_address(url, client.meta.endpoint_url, _ENDPOINT)
    return session, client


def _address(client: Any, bucket: str, url: str) -> str:
    """Return the URL of a bucket by botocore's rules: the one of a request that is not sent."""

    def answer(params: dict[str, Any], **_: Any) -> tuple[AWSResponse, dict[str, Any]]:
        return AWSResponse(params["url"], 200, {}, None), params

    client.meta.events.register("before-call.s3.HeadBucket", answer)
    try:
        return str(client.head_bucket(Bucket=bucket)["url"]).rstrip("/")
    except exceptions.BotoCoreError as error:
        raise UrlError(f"{url}: {redact_text(str(error))}", url=url) from None
    finally:
        client.meta.events.unregister("before-call.s3.HeadBucket", answer)


def properties_of(options: StorageOptions) -> dict[str, Any]:
    """Return the properties of written objects, in botocore's words."""
    arguments = nested(options, "s3_additional_kwargs")
    return {name: value for name, value in arguments.items() if name not in (_PAYER, _OWNER)}


# Credentials


def _issuer(options: StorageOptions, region: str, url: str) -> Callable[[], Issued]:
    """Return what issues the credentials: those of the options, or of botocore's sources."""
    given = _flat(options)
    keys, fallback = _keys(given, url), _keys(options, url, "fallback_")
    if given.get("anon"):
        return lambda: Issued({}, _NOT_SIGNED)
    if keys:
        return lambda: Issued(keys, _OF_OPTIONS)
    return functools.partial(_ask_chain, given.get("profile"), region, fallback, url)


def _ask_chain(profile: str | None, region: str, fallback: dict[str, Any], url: str) -> Issued:
    """Ask botocore's sources for credentials. Each call reads environment and files anew.

    Args:
        profile: of ``~/.aws/config``.
        region: in which a role is assumed, if its profile names none.
        fallback: used if no source is configured.
        url: of the bucket, for errors.
    """
    session = _session(profile)
    # Also of the clients for STS and SSO: botocore waits for a minute
    limits = Config(retries=_ONCE, connect_timeout=CONNECT_TIMEOUT_S, read_timeout=CONNECT_TIMEOUT_S)
    session.set_default_client_config(limits)
    name = session.get_config_variable("profile") or "default"
    for source in create_credential_resolver(session, region_name=region).providers:
        method = f"{source.METHOD!r} of botocore (profile {name!r})"
        failure = None
        try:
            found = source.load()
            frozen = found and found.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001  # what a command or a server sends may be anything
            failure = _no_credentials(error, method, url)
        if failure is not None:  # here: the error of a library may hold all that its source sent
            raise failure
        if frozen:
            names = ("access_key_id", "secret_access_key", "token")
            fields = dict(zip(names, (frozen.access_key, frozen.secret_key, frozen.token), strict=True))
            ends = getattr(found, "_expiry_time", None)  # it has no public name
            return Issued(fields, f"The credentials are from {method}.", ends and ends.timestamp())
    if fallback:
        return Issued(fallback, _OF_FALLBACK)
    raise AccessDeniedError(
        f"{url}: Unable to locate credentials: none of botocore's sources has any (environment, profile {name!r} of "
        "~/.aws/config, role of this machine). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or "
        "storage_options={'key':, 'secret':}; a public bucket needs storage_options={'anon': True}.",
        url=url,
    )


def _no_credentials(error: Exception, method: str, url: str) -> StorageError:
    """Make the error for a source that fails: a fault of a network or of AWS is transient."""
    line = " ".join(redact_text(f"{type(error).__name__}: {error}").split())
    message = f"{url}: no credentials from {method}: {line[:_MOST_CHARACTERS].rstrip('.')}."
    of_network = exceptions.HTTPClientError | exceptions.ConnectionError
    is_transient = isinstance(error, of_network) and not isinstance(error, exceptions.SSLError)
    if isinstance(error, exceptions.ClientError):
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        is_transient = status >= 500 or status == 429 or error.response["Error"]["Code"] in _OVERLOADED
    return (TransientStorageError if is_transient else CredentialSourceError)(message, url=url)


# For obstore


class S3Bucket(CloudBucket):
    """One bucket.

    Args:
        url: of the bucket.
        name: of the bucket.
        options: of the user, without those that select s3fs. The AWS environment decides what they leave open.
        read_timeout_s: seconds without a byte after which a request fails, unless the options name them.

    Raises:
        UrlError: if a name, an address or a file of certificates cannot be used.
        AccessDeniedError: if a key has no secret, or the profile does not exist.
    """

    store_class = S3Store
    odd = re.compile(rf"{ODD_KEY.pattern}|\?versionId=")
    hides_uploads = False

    def __init__(self, url: str, name: str, options: StorageOptions, read_timeout_s: float) -> None:
        # obstore requests another URL, or aborts, for a name that botocore refuses
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", name) or not name.strip("."):
            raise UrlError(f"{url}: no name of a bucket: letters, digits, dots, hyphens and underscores.", url=url)
        self._options, self._read_timeout_s = options, read_timeout_s
        self._configure(url, name)
        self._asks_for_region = _is_of_aws(self._config["endpoint"])

    def _configure(self, url: str, name: str, region: str | None = None) -> None:
        """Translate the options, for the region where AWS says that the bucket is, or for that of the options."""
        options = self._options
        session, self._client = _client(options, url, region)
        arguments, config = _arguments(self._client, options, url, _WRITING), nested(options, "config_kwargs")
        address, signed_for = _address(self._client, name, url), self._client.meta.region_name
        verify = nested(options, "client_kwargs").get("verify")
        client_options = obstore_client_options(
            address,
            self._read_timeout_s,
            verify=session.get_config_variable("ca_bundle") if verify is None else verify,
            proxies=config.get("proxies"),
            proxy_authorities=nested(config, "proxies_config").get("proxy_ca_bundle"),
        )
        for word, (option, convert) in _CLIENT_OPTIONS.items():
            if word in config:
                client_options[option] = convert(config[word])
        if _OWNER in arguments:
            client_options["default_headers"] = {"x-amz-expected-bucket-owner": arguments[_OWNER]}
        pays = check.flag("storage_options['requester_pays']", options.get("requester_pays") or False)
        of_obstore: dict[str, Any] = {
            "endpoint": address,
            "region": signed_for,
            "virtual_hosted_style_request": True,  # says that the bucket is in the endpoint, in whatever way
            "s3_express": name.endswith(_ZONAL),  # sessions
            "request_payer": pays or _PAYER in arguments,
            "disable_bulk_delete": True,  # which some servers do not have
        }
        if _KEY in arguments:
            of_obstore["server_side_encryption"] = "sse-c"
            of_obstore["sse_customer_key_base64"] = base64.b64encode(arguments[_KEY]).decode()
        credentials = Credentials(_issuer(options, signed_for, url), url, _EARLY_S)
        super().__init__(url, name, of_obstore, client_options, credentials)
        self.lists_in_order = not of_obstore["s3_express"]
        # obstore signs the header of the bucket's owner only where there is a body or an object
        self.lists_by_fsspec = _OWNER in arguments

    def renew(self, error: StorageError) -> bool:
        if super().renew(error):
            return True
        # 403: a redirect loses the signature
        if not self._asks_for_region or not isinstance(error, WrongRegionError | AccessDeniedError):
            return False
        self._asks_for_region = False
        try:
            answer = self._client.head_bucket(Bucket=self._name)
        except exceptions.ClientError as refused:
            answer = refused.response
        except exceptions.BotoCoreError:
            return False  # the error of the request remains
        region = answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
        if region in (None, self._config["region"]):
            return False
        self._configure(self.root.rstrip("/"), self._name, region)
        return True

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        key, version = split_version(path)
        if version is not None and writing:
            url = self.root + path
            raise UrlError(
                f"{url}: a version of an object is neither written nor deleted: leave out ?versionId={version}. If it "
                "is a part of the key, add ?versionId= after it.",
                url=url,
            )
        return key, version

    def paths(self, keys: list[str]) -> list[str]:
        return keys_as_paths(keys)

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        if properties_of(self._options):  # for which obstore has no words
            return store.slower.create(key_as_path(key), overwrite=overwrite)
        return _S3Writer(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        slower: Any = store.slower
        slower.remove_unfinished(prefix, is_left)


class _S3Writer(HiddenWriter):
    """Writes a small object by obstore, and a large one by s3fs: obstore has no condition for the end of an upload."""

    _large: ObjectWriter | None = None

    def write(self, data: bytes) -> None:
        if self._large is None and len(self._buffer) + len(data) > UPLOAD_PART_BYTES:
            store: Any = self._store
            self._large = store.slower.create(key_as_path(self._path), overwrite=self._overwrite)
            self._large.write(bytes(self._take_buffer()))
        if self._large is None:
            super().write(data)
        else:
            self._large.write(data)

    def commit(self) -> None:
        if self._large is None:
            super().commit()
        else:
            self._large.commit()

    def abort(self) -> None:
        super().abort()
        if self._large is not None:
            self._large.abort()


# For s3fs


def options_for_s3fs(options: StorageOptions, url: str) -> dict[str, Any]:
    """Return the options for s3fs: with the same proxy and authorities, and fallback credentials only without others.

    Raises:
        AccessDeniedError: if credentials are incomplete or cannot be loaded.
        UrlError: if an option, an address or a file of certificates cannot be used.
    """
    keywords = {name: value for name, value in options.items() if name not in FALLBACK_NAMES}
    session, client = _client(options, url)
    address, given = client.meta.endpoint_url, _flat(options)
    arguments = _arguments(client, options, url, (*_WRITING, "GetObject", "HeadObject", "ListObjectsV2"))
    if arguments:
        keywords["s3_additional_kwargs"] = arguments
    keys, fallback = _keys(given, url), _keys(options, url, "fallback_")
    if fallback and not keys and not given.get("anon"):
        issued = _ask_chain(given.get("profile"), client.meta.region_name, fallback, url)
        if issued.source == _OF_FALLBACK:
            keywords |= zip(("key", "secret", "token"), fallback.values(), strict=True)
    verify = nested(options, "client_kwargs").get("verify")
    trusted = authorities(address, session.get_config_variable("ca_bundle") if verify is None else verify)
    if trusted is not None:
        keywords["client_kwargs"] = {**nested(options, "client_kwargs"), "verify": trusted}
    config = nested(options, "config_kwargs")
    require_client_certificate(config.get("client_cert"), url)
    proxy = proxy_for(address, config.get("proxies"))
    proxies = {} if proxy is None else {address.partition(":")[0]: proxy}
    keywords["config_kwargs"] = {**config, "proxies": proxies}
    return keywords


def source_of_options(options: StorageOptions) -> str:
    """Name the source of the credentials that s3fs uses."""
    given = _flat(options)
    return " " + (_NOT_SIGNED if given.get("anon") else _OF_OPTIONS if "key" in given else _OF_CHAIN)
