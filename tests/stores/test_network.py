"""Stores as companies have them: a private authority, client certificates, proxies; for reads by obstore, too."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.company_proxy import PASSWORD, CompanyProxy, company_proxy
from tests.servers.raw import answer, raw
from tests.servers.recording_s3 import RecordingS3
from tests.servers.s3 import S3Server, temporary_folder
from tests.servers.tls_front import HOST, TlsFront, tls_front
from tests.support import objects
from tests.support.objects import QUICK, text_of, warnings_of
from torchdata_remote import Backend, RetryPolicy
from torchdata_remote.errors import StorageError, TransientStorageError, UrlError

BOTH = {"obstore", "botocore"}
SSE_C = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": bytes(range(32))}
AT_ONCE = RetryPolicy(first_wait_s=0)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with temporary_folder() as found:
        yield found


@pytest.fixture(scope="module")
def shared_front(folder: Path, moto: S3Server) -> Iterator[TlsFront]:
    with ExitStack() as stack:
        yield stack.enter_context(tls_front(moto.endpoint_url, folder))


@pytest.fixture
def front(shared_front: TlsFront, monkeypatch: pytest.MonkeyPatch) -> TlsFront:
    """TLS in front of moto, by a private authority."""
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    shared_front.agents.clear()
    return shared_front


@pytest.fixture(scope="module")
def proxy(folder: Path) -> Iterator[CompanyProxy]:
    with company_proxy(folder) as running:
        yield running


def use(server: S3Server, options: dict[str, Any], bucket: str | None = None) -> None:
    """Write, list, look up and read."""
    url, options = f"s3://{bucket or server.new_bucket()}/d/", {**server.storage_options, **options}
    objects.write(url, options)
    assert len(objects.listed(url, options)) == 4
    assert objects.found(f"{url}0.tar", options).size == 2048
    assert len(objects.read(f"{url}0.tar", options)) == 2048


NAMED = ["verify", "a path", "False", "ca_bundle", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"]


@pytest.mark.parametrize("named", NAMED)
def test_a_private_authority_is_trusted_by_all_requests_wherever_it_is_named(
    moto: S3Server, front: TlsFront, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """obstore reads, botocore sends the rest; the options precede the environment."""
    verify = {"verify": front.ca_file, "a path": Path(front.ca_file), "False": False}.get(named)
    if verify is not None:
        monkeypatch.setenv("AWS_CA_BUNDLE", "/nonexistent/wrong.pem")
    elif named == "ca_bundle":
        (tmp_path / "config").write_text(f"[default]\nca_bundle = {front.ca_file}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    else:
        monkeypatch.setenv(named, front.ca_file)
    use(moto, {"endpoint_url": front.url, **({} if verify is None else {"client_kwargs": {"verify": verify}})})
    assert front.taken() == BOTH


def damaged(pem: str) -> dict[str, bytes]:
    """Files that are no authorities, by what is wrong with them."""
    lines = pem.splitlines(keepends=True)
    return {
        "empty": b"",
        "no certificate": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "the second damaged": (pem + "".join([*lines[:3], *lines[4:]])).encode(),
    }


def test_an_unknown_or_damaged_authority_is_an_error_that_names_it(
    moto: S3Server, front: TlsFront, tmp_path: Path
) -> None:
    """At the first request: it is no fault of the network, which would be repeated for minutes."""
    import trustme

    file = tmp_path / "company.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    options = {**moto.storage_options, "endpoint_url": front.url, "client_kwargs": {"verify": str(file)}}
    for attempt in (
        lambda: objects.read("s3://b/a", options),
        lambda: objects.listed("s3://b/", options),
    ):
        with pytest.raises(StorageError, match=r"certificate") as caught:
            attempt()
        assert not isinstance(caught.value, TransientStorageError)
        assert "'verify'" in str(caught.value)
    for number, data in enumerate(damaged(Path(front.ca_file).read_text()).values()):
        (tmp_path / f"{number}.pem").write_bytes(data)
        options["client_kwargs"] = {"verify": str(tmp_path / f"{number}.pem")}
        with pytest.raises(UrlError, match=rf"{number}\.pem' is no file of certificates.*'verify'"):
            objects.read("s3://b/a", options)


def test_a_client_certificate_is_sent_with_every_request(
    moto: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By s3fs, which a warning says: obstore has no setting for it. Without its key it is an error."""
    with tls_front(moto.endpoint_url, tmp_path, needs_client=True) as front:
        network: dict[str, Any] = {"endpoint_url": front.url, "client_kwargs": {"verify": front.ca_file}}
        certified = {**network, "config_kwargs": {"client_cert": front.client_files}}
        use(moto, certified)
        slower = "read by s3fs, more slowly: no translation for config_kwargs['client_cert']"
        assert any(slower in one for one in warnings_of(caplog))
        assert front.taken() == {"botocore"}
        with pytest.raises(StorageError):
            objects.read("s3://bucket/a", {**moto.storage_options, **network})
        with pytest.raises(UrlError, match=r"backend='obstore' cannot read"):
            objects.read("s3://bucket/a", {**moto.storage_options, **certified}, backend=Backend.OBSTORE)
        wrong = {**moto.storage_options, **network, "config_kwargs": {"client_cert": front.client_files[0]}}
        with pytest.raises(UrlError, match=r"'client_cert'.*no certificate and its key"):
            objects.read("s3://bucket/a", wrong)


def by_environment(proxy: CompanyProxy, patch: pytest.MonkeyPatch, no_proxy: str) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        patch.setenv(name, proxy.with_password)
    for name in ("NO_PROXY", "no_proxy"):
        patch.setenv(name, no_proxy)


def behind(moto: S3Server, front: TlsFront, *, tls: bool) -> dict[str, Any]:
    """The server under a name that only the proxy knows."""
    port = front.port if tls else int(moto.endpoint_url.rpartition(":")[2])
    return {
        "endpoint_url": f"{'https' if tls else 'http'}://{HOST}:{port}",
        "client_kwargs": {"verify": front.ca_file},
    }


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("named", ["options", "environment"])
def test_a_proxy_with_a_password_is_used_for_all_requests(
    moto: S3Server, front: TlsFront, proxy: CompanyProxy, named: str, tls: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """With an authority, a payer and a key of the user, too, and without a warning: only the proxy knows the host."""
    more: dict[str, Any] = {}
    if named == "options":
        more = {"config_kwargs": {"proxies": {"http": proxy.with_password, "https": proxy.with_password}}}
        more |= {"requester_pays": True, "s3_additional_kwargs": SSE_C}
    else:
        by_environment(proxy, monkeypatch, "localhost,.elsewhere.test")
    use(moto, {**behind(moto, front, tls=tls), **more})
    assert front.taken() == (BOTH if tls else set())
    assert warnings_of(caplog) == []


def test_a_proxy_that_refuses_a_password_or_reaches_no_server_is_named_without_it(
    moto: S3Server, front: TlsFront, proxy: CompanyProxy
) -> None:
    wrong = proxy.with_password.replace(PASSWORD, "s3cret-but-wrong")
    for tls in (False, True):
        config = {"proxies": {"http": wrong, "https": wrong}}
        options = {**moto.storage_options, **behind(moto, front, tls=tls), "config_kwargs": config}
        for attempt in (
            lambda options=options: objects.read("s3://b/a", options, retry=AT_ONCE),
            lambda options=options: objects.listed("s3://b/", options, retry=AT_ONCE),
        ):
            with pytest.raises(StorageError, match=r"407|or asks for a user and a password") as caught:
                attempt()
            assert not isinstance(caught.value, TransientStorageError)
            assert "s3cret" not in text_of(caught.value)
    config = {"proxies": {"https": proxy.with_password}}
    options = {**moto.storage_options, "endpoint_url": f"https://{HOST}:1", "config_kwargs": config}
    with pytest.raises(StorageError, match=r"The proxy opens no connection to the server.*Gave up after 8") as caught:
        objects.read("s3://b/a", options, retry=AT_ONCE)
    assert not isinstance(caught.value, TransientStorageError)


# One rule decides which proxy a request uses


@pytest.fixture
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables of the machine, and every name is that of this machine."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    resolve = socket.getaddrinfo

    def here(host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
        return resolve("127.0.0.1", port, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", here)


FOUND = answer("206 Partial Content", b"x", "Content-Range: bytes 0-0/1", "Content-Length: 1", 'ETag: "1"')
RULES = [
    ("HTTP_PROXY", "", "a.org", False),
    ("http_proxy", "", "a.org", False),
    ("ALL_PROXY", "", "a.org", False),
    ("HTTPS_PROXY", "", "a.org", True),
    ("ALL_PROXY", "", "127.0.0.1", True),
    ("ALL_PROXY", "", "127.3.2.1", True),
    ("HTTP_PROXY", "", "localhost", True),
    ("HTTP_PROXY", "", "localhost.example.org", False),
    *(
        ("HTTP_PROXY", no_proxy, host, is_direct)
        for no_proxy, host, is_direct in [
            ("*", "a.org", True),
            ("A.ORG", "x.a.org", True),
            (".a.org", "a.org", True),
            ("a.org", "aa.org", False),
            ("b.org, a.org", "a.org", True),
            ("a.org:PORT", "a.org", True),
            ("a.org:81", "a.org", False),
            ("10.0.0.0/8", "10.2.3.4", True),
            ("10.0.0.0/8", "11.2.3.4", False),
            ("10.2.3.4:PORT", "10.2.3.4", True),
        ]
    ),
]


@pytest.mark.usefixtures("_no_proxies")
@pytest.mark.parametrize(("variable", "no_proxy", "host", "is_direct"), RULES)
def test_the_proxy_is_that_of_the_scheme_unless_no_proxy_names_the_host(
    variable: str, no_proxy: str, host: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name holds for its subdomains, and may be a network or have a port; never for this machine."""
    with raw(lambda head: FOUND) as proxy, raw(lambda head: FOUND) as direct:
        port = direct.url.rpartition(":")[2]
        monkeypatch.setenv(variable, proxy.url)
        monkeypatch.setenv("NO_PROXY", no_proxy.replace("PORT", port))
        assert objects.read(f"http://{host}:{port}/a?x=1") == b"x"
        assert (bool(direct.heads), bool(proxy.heads)) == (is_direct, not is_direct)


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"), [("", False), ("elsewhere.invalid", False), ("bucket.invalid", True), ("*", True)]
)
def test_no_proxy_holds_for_the_host_of_a_bucket(
    recorder: RecordingS3, no_proxy: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listings, too. Nobody but the proxy knows the host: who asks past it is told that there is no such host."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", recorder.url)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    recorder.objects["a"], host = b"bytes", f"s3.{uuid.uuid4().hex}.bucket.invalid:81"
    options = {**recorder.storage_options, "endpoint_url": f"http://{host}"}
    if is_direct:
        for attempt in (
            lambda: objects.read("s3://bucket/a", options, retry=QUICK),
            lambda: objects.listed("s3://bucket/", options, retry=QUICK),
        ):
            with pytest.raises(StorageError, match=r"No such host|No name server"):
                attempt()
        assert recorder.taken() == []
    else:
        assert objects.read("s3://bucket/a", options) == b"bytes"
        assert len(objects.listed("s3://bucket/", options)) == 1
        assert {one.host for one in recorder.taken()} == {host}


def test_proxies_of_the_options_are_used_for_every_host(recorder: RecordingS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment's proxy nor its exceptions count, also on this machine."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")
    recorder.objects["a"] = b"bytes"
    for proxy in (recorder.url, f"{recorder.url.replace('http:', 'HTTP:')}/"):
        options = {
            **recorder.storage_options,
            "endpoint_url": "http://127.0.0.1:1",
            "config_kwargs": {"proxies": {"http": proxy}},
        }
        assert objects.read("s3://bucket/a", options) == b"bytes"
    assert {one.host for one in recorder.taken()} == {"127.0.0.1:1"}
