from __future__ import annotations

import logging
import multiprocessing
import threading
import uuid

import pytest

from tests.support.waiting import wait_for
from torchdata_remote.core.notices import slow_notice
from torchdata_remote.core.notices.slow_notice import Wait, look, say
from torchdata_remote.core.options import RetryPolicy
from torchdata_remote.core.retry import call_with_retries
from torchdata_remote.errors import TransientStorageError


def _url() -> str:
    """An object of a bucket about which nothing has been said."""
    return f"s3://bucket-{uuid.uuid4().hex}/a.tar"


def _then() -> str:
    return "It ends."


def _messages(caplog: pytest.LogCaptureFixture, url: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if url.rpartition("/")[0] in record.getMessage()]


def _watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "torchdata_remote notices"]


def test_a_request_without_data_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """With URL, seconds and what happens next, at level WARNING, which Python prints by default."""
    url = _url()
    with Wait(url, _then, quiet_s=0.01):
        wait_for(lambda: bool(_messages(caplog, url)))
    assert _messages(caplog, url) == [f"{url}: no data for 0 s. It ends."]
    assert [record.levelno for record in caplog.records if url in record.getMessage()] == [logging.WARNING]


@pytest.mark.parametrize("scheme", ["http", "s3", "gs", "gcs", "az", "abfs", "abfss", "hf", "datasets"])
def test_the_default_call_says_when_it_gives_up(caplog: pytest.LogCaptureFixture, scheme: str) -> None:
    """The notice of an attempt names its end, and until when it is repeated."""
    url, policy = _url().replace("s3", scheme), RetryPolicy(progress_timeout_s=0.02, deadline_s=60, max_attempts=2)

    def operation() -> None:
        wait_for(lambda: bool(_messages(caplog, url)))

    call_with_retries(operation, policy, url=url)
    [message] = _messages(caplog, url)
    assert "Attempt 1 is given up after 0.02 s without data, and repeated until " in message
    assert "(deadline_s=60, max_attempts=2)." in message


def test_many_requests_cost_one_message(caplog: pytest.LogCaptureFixture) -> None:
    """It counts them, and is not repeated for 30 s."""
    url = _url()
    waits = [Wait(url, _then, quiet_s=60) for _ in range(50)]
    for wait in waits:
        wait.__enter__()
    try:
        for wait in waits:
            wait.since_s -= 60
        look()
        look()
    finally:
        for wait in waits:
            wait.__exit__()
    assert len(_messages(caplog, url)) == 1
    assert "(50 requests to s3://bucket-" in _messages(caplog, url)[0]


def test_progress_delays_the_notice_and_a_trickle_does_not(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that arrive start the seconds anew, unless they are too few."""
    url, received = _url(), [0]
    with Wait(url, _then, lambda: received[0], quiet_s=60) as _:
        (wait,) = [wait for wait in slow_notice._waits.values() if wait.url == url]
        wait.since_s -= 61
        received[0] = slow_notice.MIN_PROGRESS_BYTES
        look()
        assert not _messages(caplog, url)
        wait.since_s -= 61
        received[0] += 1
        look()
    assert _messages(caplog, url) == [f"{url}: slow: 1 byte in 61 s. It ends."]


def test_the_same_message_is_not_repeated_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """One of another kind, or about another host, is."""
    url, other = _url(), _url()
    assert [say("x", url, f"{url} 1"), say("x", url, f"{url} 2"), say("y", url, f"{url} 3")] == [True, False, True]
    assert say("x", other, f"{other} 1")
    assert _messages(caplog, url) == [f"{url} 1", f"{url} 3"]


def test_messages_that_were_withheld_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _url()
    for _ in range(3):
        say("x", url, url)
    monkeypatch.setattr(slow_notice, "REPEAT_S", 0.0)
    say("x", url, url)
    assert _messages(caplog, url)[-1].endswith("(2 more like this since the last message.)")


def test_credentials_and_queries_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    host = uuid.uuid4().hex
    with Wait(f"https://me:secret@{host}/a?X-Amz-Signature=00", _then, quiet_s=0.01):
        wait_for(lambda: bool(_messages(caplog, f"https://{host}/a")))
    assert "secret" not in caplog.text
    assert "Signature" not in caplog.text


def test_the_thread_ends_when_nothing_is_under_way() -> None:
    """And one more request starts one again."""
    for _ in range(2):
        with Wait(_url(), _then):
            assert len(_watchers()) == 1
        wait_for(lambda: not _watchers())


def _fork_while_waiting() -> tuple[int, int]:
    context = multiprocessing.get_context("fork")
    with Wait(_url(), _then):
        results = context.SimpleQueue()
        child = context.Process(target=lambda: results.put((len(slow_notice._waits), len(_watchers()))))
        child.start()
        found: tuple[int, int] = results.get()
        child.join()
        assert len(_watchers()) == 1, "the parent watches again"
        return found


def test_a_forked_child_has_neither_the_requests_nor_the_thread() -> None:
    """The thread ends before the fork, of which Python would warn."""
    assert _fork_while_waiting() == (0, 0)


def test_the_first_refused_connection_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Two ordinary failures are not."""
    for unreachable, num_expected in (("", 0), ("host:80", 1)):
        url, failures = _url(), [1, 1]

        def operation(url: str = url, unreachable: str = unreachable, failures: list[int] = failures) -> None:
            if failures:
                failures.pop()
                error = TransientStorageError(f"{url}: host:80 refuses connections.", url=url)
                error.unreachable = unreachable
                raise error

        call_with_retries(operation, RetryPolicy(deadline_s=60), sleep=lambda seconds: None)
        assert len(_messages(caplog, url)) == num_expected
        if num_expected:
            assert "refuses connections. Attempt 1 failed; it is repeated until " in _messages(caplog, url)[0]
            assert "(deadline_s=60)" in _messages(caplog, url)[0]
