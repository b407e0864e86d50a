"""S3 as companies have it: a private authority, client certificates, proxies; each for reads by obstore, too."""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.company_proxy import PASSWORD, CompanyProxy, company_proxy
from tests.servers.recording_s3 import RecordingS3
from tests.servers.s3 import S3Server, temporary_folder
from tests.servers.tls_front import HOST, TlsFront, tls_front
from tests.support.s3_stores import read, text_of, write
from torchdata_remote import Backend
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import StorageError, TransientStorageError, UrlError
from torchdata_remote.storage import Connection, Store, open_store

BOTH = {"obstore", "botocore"}
SSE_C = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": bytes(range(32))}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with temporary_folder() as found:
        yield found


@pytest.fixture(scope="module")
def front_of(folder: Path) -> Iterator[Callable[[S3Server], TlsFront]]:
    """Start TLS in front of a server, once for all tests of this module."""
    with ExitStack() as stack:

        @functools.cache
        def start(server: S3Server) -> TlsFront:
            (folder / server.name).mkdir()
            return stack.enter_context(tls_front(server.endpoint_url, folder / server.name))

        yield start


@pytest.fixture
def front(s3: S3Server, front_of: Callable[[S3Server], TlsFront]) -> TlsFront:
    """TLS in front of each S3 server in turn."""
    found = front_of(s3)
    found.agents.clear()
    return found


@pytest.fixture(scope="module")
def proxy(folder: Path) -> Iterator[CompanyProxy]:
    with company_proxy(folder) as running:
        yield running


def store_with(server: S3Server, bucket: str, backend: Backend = Backend.AUTOMATIC, **options: Any) -> Store:
    merged = {**server.storage_options, **options}
    return open_store(f"s3://{bucket}", StorageOptions(merged), Connection(backend))[0]


def use(store: Store) -> None:
    """Write, list, look up, and read a whole object and a range."""
    write(store, "a", b"bytes", overwrite=True)
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == ["a"]
    assert store.stat("a").size == 5
    assert read(store, "a") == b"bytes"
    assert store.read("a", 1, 3, None).whole() == b"yt"


def verify(file: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    return {"client_kwargs": {"verify": file}}


def verify_path(file: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    return {"client_kwargs": {"verify": Path(file)}}


def variable(name: str) -> Any:
    def name_it(file: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
        monkeypatch.setenv(name, file)
        return {}

    return name_it


def profile(file: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    (folder / "config").write_text(f"[default]\nca_bundle = {file}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    return {}


@pytest.fixture(autouse=True)
def _no_authorities_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "named",
    [
        verify,
        verify_path,
        profile,
        variable("AWS_CA_BUNDLE"),
        variable("REQUESTS_CA_BUNDLE"),
        variable("SSL_CERT_FILE"),
    ],
    ids=["verify", "verify as path", "ca_bundle", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"],
)
def test_a_private_authority_is_trusted_by_reads_and_all_other_requests(
    s3: S3Server, front: TlsFront, named: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Wherever it is named; obstore reads, botocore sends the rest."""
    use(store_with(s3, s3.new_bucket(), endpoint_url=front.url, **named(front.ca_file, monkeypatch, tmp_path)))
    assert front.taken() == BOTH


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
def test_an_unknown_authority_is_an_error_that_says_which_are_trusted(
    s3: S3Server, front: TlsFront, backend: Backend, folder: Path
) -> None:
    """And where others are named; the first request fails, not one after minutes."""
    other = folder / "other.pem"
    if not other.exists():
        import trustme

        trustme.CA().cert_pem.write_to_path(str(other))
    options: dict[str, Any] = {"endpoint_url": front.url, "client_kwargs": {"verify": str(other)}}
    store = store_with(s3, s3.new_bucket(), backend, **options)
    for attempt in (lambda: read(store, "a"), lambda: store.list_page("", recursive=True, token=None)):
        with pytest.raises(StorageError, match=r"certificate") as caught:
            attempt()
        assert not isinstance(caught.value, TransientStorageError)
        assert str(other) in str(caught.value)
        assert "'verify'" in str(caught.value)


def test_every_certificate_is_accepted_if_verify_is_false(s3: S3Server, front: TlsFront) -> None:
    """By both libraries."""
    use(store_with(s3, s3.new_bucket(), endpoint_url=front.url, client_kwargs={"verify": False}))
    assert front.taken() == BOTH


def test_the_options_precede_the_environment(
    moto: S3Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle of AWS's environment does not replace the file of the options."""
    (tmp_path / "wrong.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "wrong.pem"))
    with tls_front(moto.endpoint_url, tmp_path) as front:
        options: dict[str, Any] = {"endpoint_url": front.url, "client_kwargs": {"verify": front.ca_file}}
        use(store_with(moto, moto.new_bucket(), **options))
        assert front.taken() == BOTH


def test_a_client_certificate_is_sent_with_every_request(
    moto: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By botocore, which a warning says: obstore has no setting for it."""
    with tls_front(moto.endpoint_url, tmp_path, needs_client=True) as front:
        network: dict[str, Any] = {"endpoint_url": front.url, "client_kwargs": {"verify": front.ca_file}}
        certified: dict[str, Any] = {**network, "config_kwargs": {"client_cert": front.client_files}}
        bucket = moto.new_bucket()
        with caplog.at_level(logging.WARNING, "torchdata_remote"):
            use(store_with(moto, bucket, **certified))
        assert "read by botocore, more slowly: obstore cannot send a client certificate" in caplog.text
        assert front.taken() == {"botocore"}
        with pytest.raises(StorageError):
            read(store_with(moto, bucket, **network), "a")
        with pytest.raises(UrlError, match=r"backend='obstore' cannot read"):
            store_with(moto, bucket, Backend.OBSTORE, **certified)


def by_option(proxy: CompanyProxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"proxies": {"http": proxy.with_password, "https": proxy.with_password}}


def by_environment(proxy: CompanyProxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy.with_password)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "localhost,.elsewhere.test")
    return {}


def endpoint_of(s3: S3Server, front: TlsFront, *, tls: bool) -> dict[str, Any]:
    """The server under a name that only the proxy knows."""
    port = front.port if tls else int(s3.endpoint_url.rpartition(":")[2])
    return {
        "endpoint_url": f"{'https' if tls else 'http'}://{HOST}:{port}",
        "client_kwargs": {"verify": front.ca_file},
    }


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("named", [by_option, by_environment])
def test_a_proxy_with_a_password_is_used_for_all_requests(
    s3: S3Server, front: TlsFront, proxy: CompanyProxy, named: Any, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the proxy knows the host, so none goes past it; https by CONNECT."""
    options = endpoint_of(s3, front, tls=tls)
    use(store_with(s3, s3.new_bucket(), **options, config_kwargs=named(proxy, monkeypatch)))
    assert front.taken() == (BOTH if tls else set())


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_refused_password_of_a_proxy_is_an_error_that_does_not_show_it(
    moto: S3Server, proxy: CompanyProxy, backend: Backend, tls: bool, tmp_path: Path
) -> None:
    """The proxy answers 407."""
    wrong = proxy.with_password.replace(PASSWORD, "s3cret-but-wrong")
    with tls_front(moto.endpoint_url, tmp_path) as front:
        options = endpoint_of(moto, front, tls=tls)
        config = {"proxies": {"http": wrong, "https": wrong}}
        store = store_with(moto, moto.new_bucket(), backend, **options, config_kwargs=config)
        for attempt in (lambda: read(store, "a"), lambda: store.list_page("", recursive=True, token=None)):
            with pytest.raises(StorageError, match=r"the proxy asks for a user and a password") as caught:
                attempt()
            assert not isinstance(caught.value, TransientStorageError)
            assert "s3cret" not in text_of(caught.value)


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
def test_a_proxy_that_reaches_no_server_is_named_in_the_error(
    moto: S3Server, proxy: CompanyProxy, backend: Backend
) -> None:
    """It may forbid the host, so that few attempts are made."""
    config = {"proxies": {"https": proxy.with_password}}
    store = store_with(moto, "bucket", backend, endpoint_url=f"https://{HOST}:1", config_kwargs=config)
    with pytest.raises(TransientStorageError, match=r"the proxy opens no connection to the server.*NO_PROXY") as caught:
        read(store, "a")
    assert caught.value.likely_permanent


@pytest.mark.parametrize("no_proxy", [f".{HOST}", HOST, "*"])
def test_hosts_of_no_proxy_are_asked_directly(
    moto: S3Server, proxy: CompanyProxy, no_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the proxy knows them, so that is an error here, by both libraries; the proxy is not asked."""
    by_environment(proxy, monkeypatch)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, no_proxy)
    store = store_with(moto, "direct", endpoint_url=f"http://{HOST}:1")
    before = proxy.log.read_text()
    for attempt in (lambda: read(store, "a"), lambda: store.list_page("", recursive=True, token=None)):
        with pytest.raises(StorageError, match=HOST):
            attempt()
    assert proxy.log.read_text() == before


def test_a_bucket_with_a_host_of_its_own_may_be_named_in_no_proxy(
    aws: RecordingS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both libraries decide by the host that they ask, and so the recording proxy sees the other bucket only."""
    options = {"key": "k", "secret": "s", "region": "us-west-2"}
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "near.s3.us-west-2.amazonaws.com")
    aws.objects["a"] = b"bytes"
    for name, value in (("HTTPS_PROXY", aws.url), ("SSL_CERT_FILE", aws.ca_file), ("AWS_CA_BUNDLE", aws.ca_file)):
        monkeypatch.setenv(name, value)
    far = open_store("s3://far", StorageOptions(options))[0]
    assert read(far, "a") == b"bytes"
    far.stat("a")
    assert {one.host for one in aws.taken()} == {"far.s3.us-west-2.amazonaws.com"}
    near = open_store("s3://near", StorageOptions(options))[0]
    for attempt in (lambda: read(near, "a"), lambda: near.stat("a")):
        with pytest.raises(StorageError):
            attempt()
    assert aws.taken() == []


def test_a_proxy_is_reached_by_tls_with_an_authority_of_its_own(moto: S3Server, tmp_path: Path) -> None:
    """``proxy_ca_bundle``, as botocore calls it; the store has another authority."""
    (tmp_path / "front").mkdir()
    with company_proxy(tmp_path, tls=True) as proxy, tls_front(moto.endpoint_url, tmp_path / "front") as front:
        config = {
            "proxies": {"http": proxy.with_password, "https": proxy.with_password},
            "proxies_config": {"proxy_ca_bundle": proxy.ca_file},
        }
        options = endpoint_of(moto, front, tls=True)
        use(store_with(moto, moto.new_bucket(), **options, config_kwargs=config))
        assert front.taken() == BOTH


def test_authority_proxy_key_and_payer_are_read_by_obstore_together(
    s3: S3Server,
    front: TlsFront,
    proxy: CompanyProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All that a company may ask for, without a warning."""
    with caplog.at_level(logging.WARNING, "torchdata_remote"):
        store = store_with(
            s3,
            s3.new_bucket(),
            **endpoint_of(s3, front, tls=True),
            config_kwargs=by_option(proxy, monkeypatch),
            requester_pays=True,
            s3_additional_kwargs=SSE_C,
        )
        use(store)
    assert front.taken() == BOTH
    assert caplog.text == ""


def test_the_user_agent_is_that_of_the_options(recorder: RecordingS3) -> None:
    """For both libraries."""
    recorder.objects["a"] = b"bytes"
    options = {**recorder.storage_options, "config_kwargs": {"user_agent": "company/1"}}
    store, _ = open_store("s3://bucket", StorageOptions(options))
    assert read(store, "a") == b"bytes"
    store.stat("a")
    assert [one.headers["user-agent"] for one in recorder.taken()] == ["company/1"] * 2


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
def test_the_time_limit_of_a_silent_server_is_that_of_the_options(backend: Backend) -> None:
    """``read_timeout``, in seconds; the connection is open, and no response arrives."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {"endpoint_url": url, "key": "k", "secret": "s", "config_kwargs": {"read_timeout": 0.2}}
        store, _ = open_store("s3://bucket", StorageOptions(options), Connection(backend))
        began = time.monotonic()
        with pytest.raises(TransientStorageError):
            read(store, "a")
        assert time.monotonic() - began < 10  # the default is 30


@pytest.mark.parametrize(
    "config",
    [
        {"connect_timeout": 5, "max_pool_connections": 50},
        {"signature_version": "s3v4", "response_checksum_validation": "when_required"},
        {"proxies": {}, "proxies_config": {"proxy_use_forwarding_for_https": False}},
        {"proxies": None, "client_cert": None},
    ],
)
def test_usual_arguments_of_a_client_do_not_select_s3fs(
    recorder: RecordingS3, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Reads stay fast."""
    recorder.objects["a"] = b"bytes"
    with caplog.at_level(logging.WARNING, "torchdata_remote"):
        options = {**recorder.storage_options, "config_kwargs": config, "use_ssl": True}
        assert read(open_store("s3://bucket", StorageOptions(options))[0], "a") == b"bytes"
    assert caplog.text == ""
    assert [one.is_by_obstore for one in recorder.taken()] == [True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"client_kwargs": {"verify": 1}}, "['verify'] must be a file of certificate authorities, True or False"),
        ({"client_kwargs": {"verify": ""}}, "['verify'] must be a file of certificate authorities"),
        ({"config_kwargs": {"proxies": "http://p:1"}}, "['proxies'] must be a dict, got str"),
        ({"config_kwargs": {"proxies": {"https": 3128}}}, "['proxies'] must have URLs by scheme"),
        ({"config_kwargs": {"proxies": {"https": "socks5://u:s3cret@p:1"}}}, "proxies are http:// or https://"),
        ({"config_kwargs": {"proxies_config": "ca.pem"}}, "['proxies_config'] must be a dict, got a str"),
        ({"config_kwargs": {"proxies_config": {"proxy_ca_bundle": 1}}}, "['proxy_ca_bundle'] must be a file"),
        ({"config_kwargs": {"client_cert": ("a", "b", "c")}}, "['client_cert'] must be a file with"),
        ({"config_kwargs": {"client_cert": True}}, "['client_cert'] must be a file with"),
        ({"config_kwargs": {"read_timeout": "60"}}, "['read_timeout'] must be a number of seconds above 0, got a str"),
        ({"config_kwargs": {"connect_timeout": 0}}, "['connect_timeout'] must be a number of seconds above 0, got 0"),
        ({"config_kwargs": {"max_pool_connections": 1.5}}, "must be a number of connections above 0, got 1.5"),
        ({"config_kwargs": {"max_pool_connections": True}}, "must be a number of connections above 0, got True"),
        ({"config_kwargs": {"user_agent": b"x"}}, "['user_agent'] must be a str, got a bytes"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_meant_is_refused_before_any_request(options: dict[str, Any], text: str) -> None:
    """The option is named; passwords are not shown."""
    with pytest.raises(UrlError) as caught:
        open_store("s3://bucket", StorageOptions({"endpoint_url": "http://127.0.0.1:1", **options}))
    assert text in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_forwarding_https_by_a_proxy_selects_s3fs_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """obstore always asks for a tunnel."""
    config = {"proxies_config": {"proxy_use_forwarding_for_https": True}}
    with caplog.at_level(logging.WARNING, "torchdata_remote"):
        open_store("s3://forwarded", StorageOptions({"endpoint_url": "https://127.0.0.1:1", "config_kwargs": config}))
    assert "no translation for config_kwargs['proxies_config']['proxy_use_forwarding_for_https']" in caplog.text


def damaged(pem: str) -> dict[str, bytes]:
    """Files that are no authorities, by what is wrong with them."""
    lines = pem.splitlines(keepends=True)
    return {
        "empty": b"",
        "cut": "".join(lines[:5]).encode(),
        "no base64": b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        "no certificate": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "the second damaged": (pem + "".join([*lines[:3], *lines[4:]])).encode(),
        "indented": "".join(f"  {line}" for line in lines).encode(),
        "another encoding": pem.encode("utf-16"),
    }


@pytest.mark.parametrize("what", damaged("\n" * 9))
def test_a_damaged_file_of_authorities_is_an_error_that_names_it(
    recorder: RecordingS3, what: str, tmp_path: Path
) -> None:
    """At once, and by both libraries: it is no fault of the network, which would be retried for minutes."""
    file = tmp_path / "company.pem"
    file.write_bytes(damaged(Path(recorder.ca_file).read_text())[what])
    options: Any = {"endpoint_url": "https://127.0.0.1:1", "key": "k", "secret": "s"}
    store: Any = open_store("s3://bucket", StorageOptions({**options, "client_kwargs": {"verify": str(file)}}))[0]
    for attempt in (store.read, store.read_without_obstore):
        with pytest.raises(UrlError, match=r"company\.pem', named by .*'verify'\], (has no|is damaged)"):
            attempt("a", 0, None, None)


@pytest.mark.parametrize("before", ["\ufeff", "# Behörde der Firma\r\n"], ids=["byte order mark", "comment"])
def test_what_is_around_certificates_does_not_matter(moto: S3Server, before: str, tmp_path: Path) -> None:
    """As OpenSSL reads such files."""
    with tls_front(moto.endpoint_url, tmp_path) as front:
        file = tmp_path / "company.pem"
        file.write_text(before + Path(front.ca_file).read_text() + "\n# end\n", encoding="utf-8")
        use(store_with(moto, moto.new_bucket(), endpoint_url=front.url, client_kwargs={"verify": file}))
        assert front.taken() == BOTH


def test_a_client_certificate_without_its_key_is_an_error_that_names_it(moto: S3Server, tmp_path: Path) -> None:
    """At once. For a key with a password OpenSSL would ask at the terminal of each worker."""
    from cryptography.hazmat.primitives import serialization

    with tls_front(moto.endpoint_url, tmp_path) as front:
        certificate, key = front.client_files
        locked = tmp_path / "locked.key"
        pem = serialization.load_pem_private_key(Path(key).read_bytes(), None)
        locked.write_bytes(
            pem.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"s3cret"),
            )
        )
        for files, why in (
            (certificate, "no certificate and its key"),
            ((key, certificate), "no certificate and its key"),
            ((front.ca_file, key), "no certificate and its key"),
            ((certificate, str(tmp_path)), "Is a directory"),
            ((certificate, str(locked)), "has a password"),
        ):
            options: Any = {"client_kwargs": {"verify": front.ca_file}, "config_kwargs": {"client_cert": files}}
            with pytest.raises(UrlError, match=why) as caught:
                read(store_with(moto, "bucket", endpoint_url=front.url, **options), "a")
            assert "'client_cert'" in str(caught.value)


def test_a_damaged_authority_of_a_proxy_is_an_error_that_names_it(tmp_path: Path) -> None:
    """By both libraries."""
    file = tmp_path / "proxy-ca.pem"
    file.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    config = {"proxies": {"https": "https://127.0.0.1:1"}, "proxies_config": {"proxy_ca_bundle": str(file)}}
    options = {"endpoint_url": "https://host.test", "key": "k", "secret": "s", "config_kwargs": config}
    store: Any = open_store("s3://bucket", StorageOptions(options))[0]
    for attempt in (store.read, store.read_without_obstore):
        with pytest.raises(UrlError, match=r"proxy-ca\.pem', named by .*is damaged"):
            attempt("a", 0, None, None)
