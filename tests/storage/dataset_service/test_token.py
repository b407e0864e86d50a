"""Which hosts get the token of the environment."""

from __future__ import annotations

import pytest

from tests.servers.scripted import Request, Response, scripted
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.storage.dataset_service.store import DatasetsStore
from torchdata_remote.storage.dataset_service.token import token_for

HOSTS = "TORCHDATA_REMOTE_TOKEN_HOSTS"
TOKEN = "correct-horse-battery"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", TOKEN)
    monkeypatch.delenv(HOSTS, raising=False)


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:1", "127.3.2.1", "[::1]:80", "LOCALHOST"])
def test_this_machine_gets_it(host: str) -> None:
    """Such as a service on it, or a forwarded port."""
    assert token_for(host, None) == TOKEN


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example:8080", "10.0.0.1:8080", "localhost.evil.example:80", "127.0.0.1.evil.example", "0.0.0.0:80"),
        *("[::ffff:10.0.0.1]:80", "localhost:80@evil.example", "localhost\\@evil.example", "evil.example#localhost"),
        *("localhost:80:80", "localhost:", "", "[::1", "127.1:80 ", "localhost\n"),
    ],
)
def test_another_host_does_not_get_it(host: str) -> None:
    """Also none that looks like this machine."""
    assert token_for(host, None) is None
    assert token_for(host, "passed") == "passed"


@pytest.mark.parametrize(
    ("hosts", "named", "others"),
    [
        (
            "storage:8080",
            ["storage:8080", "Storage:8080"],
            ["storage:80", "storage", "storage.evil:8080", "xstorage:8080"],
        ),
        ("storage", ["storage", "storage:80"], ["storage.evil", "evil"]),
        (" a:1 , B:2,", ["a:1", "b:2"], ["a:2", "b:1", ""]),
        ("[fd00::1]:80", ["[fd00::1]:80", "[FD00::1]:80"], ["[fd00::1]:81", "[fd00::2]:80"]),
        ("*", [], ["storage:80"]),
    ],
)
def test_hosts_that_are_named_get_it(
    monkeypatch: pytest.MonkeyPatch, hosts: str, named: list[str], others: list[str]
) -> None:
    """With their port, or any port of a name without one."""
    monkeypatch.setenv(HOSTS, hosts)
    assert [token_for(host, None) for host in named] == [TOKEN] * len(named)
    assert [token_for(host, None) for host in others] == [None] * len(others)


@pytest.mark.parametrize("by_obstore", [True, False])
def test_no_request_to_another_host_has_it(monkeypatch: pytest.MonkeyPatch, by_obstore: bool) -> None:
    """And the error of a service that requires one says what to set."""
    monkeypatch.setattr("torchdata_remote.storage.dataset_service.token._is_loopback", lambda name: False)

    def respond(request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Response(401, b'{"error": "A token is required."}')
        return Response.of_object(request, b"x")

    with scripted(respond) as server:
        host = server.url.removeprefix("http://")
        store = DatasetsStore(host, StorageOptions(), 10.0, read_by_obstore=by_obstore)
        with pytest.raises(AccessDeniedError, match=f"set {HOSTS}={host}"):
            store.read("a/b", 0, 1, None)
        with pytest.raises(AccessDeniedError, match=f"set {HOSTS}={host}"):
            store.stat("a/b")
        assert all("authorization" not in request.headers for request in server.requests)
        monkeypatch.setenv(HOSTS, host)
        assert store.read("a/b", 0, 1, None).whole() == b"x"
        assert store.stat("a/b").size == 1
        monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", "wrong")
        with pytest.raises(AccessDeniedError, match="Pass its token by storage_options"):
            store.stat("a/b")
