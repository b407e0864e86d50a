"""One rule decides which proxy a request uses."""

from __future__ import annotations

import os

import pytest

from torchdata_remote.errors import UrlError
from torchdata_remote.storage.network import NetworkSettings, obstore_client_options, proxy_for, require_for_botocore


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://s3.example.org/a", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://s3.example.org/a", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://s3.example.org/a", None),
        ({"http_proxy": "p:1"}, "http://s3.example.org", "http://p:1"),
        ({"https_proxy": "http://low:1", "HTTPS_PROXY": "http://up:1"}, "https://a.org", "http://low:1"),
        ({"ALL_PROXY": "https://p:1", "HTTP_PROXY": "http://q:1"}, "https://a.org", "https://p:1"),
        ({"ALL_PROXY": "http://p:1"}, "https://127.0.0.1:9000", None),
    ],
)
def test_the_proxy_is_that_of_the_scheme(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    """Then ALL_PROXY; lower case goes first; never for this machine."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_direct"),
    [
        ("*", "http://a.org", True),
        ("a.org", "http://a.org", True),
        ("A.ORG", "http://x.a.org", True),
        (".a.org", "http://a.org:8080", True),
        ("*.a.org", "http://x.a.org", True),
        ("a.org", "http://aa.org", False),
        ("b.org, a.org", "http://a.org", True),
        ("b.org a.org", "http://a.org", True),
        ("a.org:80", "http://a.org", True),
        ("a.org:80", "http://a.org:81", False),
        ("10.0.0.0/8", "http://10.2.3.4", True),
        ("10.0.0.0/8", "http://11.2.3.4", False),
        ("10.0.0.0/8", "http://10.org", False),
        ("10.2.3.4", "http://10.2.3.4:9000", True),
        ("10.2.3.4:9000", "http://10.2.3.4:9001", False),
        ("fd00::/8", "http://[fd00::1]:9000", True),
        ("[fd00::1]:9000", "http://[fd00::1]:9000", True),
        ("fd00::1", "http://[fd00::2]:9000", False),
        ("a.org", "http://a.org.:80", True),
        ("", "http://a.org", False),
        (", ,", "http://a.org", False),
    ],
)
def test_no_proxy_has_names_networks_and_ports(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, is_direct: bool
) -> None:
    """A name holds for its subdomains."""
    monkeypatch.setenv("HTTP_PROXY", "http://p:1")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (proxy_for(url) is None) is is_direct


def test_proxies_of_the_options_are_used_for_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by botocore: neither the environment's proxy nor its exceptions count, also on this machine."""
    monkeypatch.setenv("HTTPS_PROXY", "http://environment:1")
    monkeypatch.setenv("NO_PROXY", "*")
    assert proxy_for("https://127.0.0.1", {"https": "http://mine:1"}) == "http://mine:1"
    assert proxy_for("https://a.org", {}) is None
    assert obstore_client_options("https://a.org", 1, NetworkSettings(proxies={}))["proxy_excludes"].startswith("*")


@pytest.mark.parametrize("proxy", ["socks5://me:s3cret@p:1", "http://me:s3cret/x@p", "http://me:s3cret@:1", "http://"])
def test_a_proxy_that_cannot_be_used_is_an_error_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """SOCKS, and a URL with a character that had to be encoded."""
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(UrlError, match="proxy") as caught:
        proxy_for("https://s3.example.org/a")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("HTTP://P:1", "http://P:1"),
        ("http://p:1/", "http://p:1"),
        ("http://p:1/path?x=hush", "http://p:1"),
        ("http://u:a%40b@p:1", "http://u:a%40b@p:1"),
    ],
)
def test_a_proxy_is_written_so_that_all_libraries_accept_it(given: str, used: str) -> None:
    """botocore knows schemes in lower case only, and shows a query in its errors."""
    assert proxy_for("https://a.org", {"https": given}) == used


@pytest.mark.parametrize("password", ["1/hush", "1?hush", "1#hush", "hu\\sh", "hu\nsh"])
def test_a_password_that_cuts_the_url_of_a_proxy_is_refused(password: str) -> None:
    """Its beginning would be a port of the host that is named like the user."""
    with pytest.raises(UrlError, match="is no URL") as caught:
        proxy_for("https://a.org", {"https": f"http://user:{password}@p:1"})
    assert "hu" not in str(caught.value).replace("such", "")


@pytest.mark.parametrize("user", ["trainer", "trainer:", ":hush", "trainer:h%C3%BCsh"])
def test_a_login_that_botocore_does_not_send_is_refused_for_it(user: str) -> None:
    """Or reads by obstore would work, and listings fail. The login is not shown."""
    with pytest.raises(UrlError, match="needs a user and a password") as caught:
        require_for_botocore(f"http://{user}@p:1", "s3://b")
    assert user not in str(caught.value)
    require_for_botocore("http://user:h%40sh@p:1", "s3://b")
    require_for_botocore("http://p:1", "s3://b")
