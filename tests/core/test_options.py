from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.options import Backend, FetchOptions, RetryPolicy, StorageOptions


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"deadline_s": math.nan}, "deadline_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"progress_timeout_s": 0}, "progress_timeout_s"),
        ({"progress_timeout_s": -2.5}, "progress_timeout_s"),
        ({"progress_timeout_s": math.nan}, "progress_timeout_s"),
        ({"first_wait_s": -0.1}, "first_wait_s"),
        ({"first_wait_s": 2, "max_wait_s": 1}, "max_wait_s"),
        ({"first_wait_s": math.nan}, "first_wait_s"),
    ],
)
def test_an_impossible_retry_policy_is_refused(wrong: dict[str, Any], name: str) -> None:
    """The message has the option and its value."""
    with pytest.raises((TypeError, ValueError), match=name) as caught:
        RetryPolicy(**wrong)
    assert str(next(iter(wrong.values()))) in str(caught.value)


@pytest.mark.parametrize("name", ["max_in_flight", "part_bytes", "max_buffer_bytes"])
@pytest.mark.parametrize("value", [0, -1])
def test_impossible_fetch_options_are_refused(name: str, value: int) -> None:
    """The message has the option and its value."""
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        FetchOptions(**wrong)


def test_limits_themselves_are_allowed() -> None:
    """The smallest values that make sense are taken as they are."""
    assert RetryPolicy(max_attempts=1, first_wait_s=0, max_wait_s=0).max_attempts == 1
    assert FetchOptions(max_in_flight=1, part_bytes=1, max_buffer_bytes=1).part_bytes == 1


def test_options_are_frozen() -> None:
    """An option object that several pipes share does not change under them."""
    for options, name in ((RetryPolicy(), "deadline_s"), (FetchOptions(), "part_bytes")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, name, 1)


@given(st.dictionaries(st.sampled_from(["key", "secret", "token", "client_kwargs"]), st.text("XYZ", min_size=4)))
def test_storage_options_show_names_only(options: dict[str, str]) -> None:
    """Neither repr nor str nor a format shows a value, and all names are there."""
    shown = StorageOptions(options)
    for text in (repr(shown), str(shown), f"{shown}", repr([shown])):
        assert all(name in text for name in options)
        assert not any(value in text for value in options.values())


def test_nested_secrets_are_not_shown() -> None:
    """A secret inside ``client_kwargs`` is as hidden as one at the top."""
    options = StorageOptions({"client_kwargs": {"aws_secret_access_key": "hush"}})
    assert "hush" not in repr(options)


def test_storage_options_are_the_users_mapping() -> None:
    """What the user gave is read back unchanged; later changes of the dict do not reach it."""
    given_options = {"key": "a", "client_kwargs": {"region_name": "x"}}
    options = StorageOptions(given_options)
    assert dict(options) == given_options
    given_options["key"] = "b"
    assert options["key"] == "a"
    assert dict(StorageOptions(options)) == dict(options)
    assert dict(pickle.loads(pickle.dumps(options))) == dict(options)
    assert not StorageOptions(None)
    assert len(options) == 2


def test_storage_options_of_another_type_are_refused() -> None:
    """The message names the type and does not show the value, which may be a secret."""
    with pytest.raises(TypeError, match=r"dict.*str") as caught:
        StorageOptions("key=hush")  # type: ignore[arg-type]
    assert "hush" not in str(caught.value)


def test_identity_differs_for_different_options() -> None:
    """Equal options, in any order, share what is kept per process; others do not."""
    one = StorageOptions({"key": "a", "secret": "b"})
    assert one.identity() == StorageOptions({"secret": "b", "key": "a"}).identity()
    assert one.identity() != StorageOptions({"key": "a", "secret": "c"}).identity()
    assert one.identity() != StorageOptions({"key": "a"}).identity()
    session, other = object(), object()
    assert StorageOptions({"session": session}).identity() == StorageOptions({"session": session}).identity()
    assert StorageOptions({"session": session}).identity() != StorageOptions({"session": other}).identity()


def test_server_differs_for_different_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints and accounts do, wherever they are given; credentials do not."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert StorageOptions({"key": "a", "secret": "b", "client_kwargs": {"region_name": "x"}}).server() == ""
    first = StorageOptions({"endpoint_url": "http://a", "key": "k"}).server()
    assert first == StorageOptions({"endpoint_url": "http://a", "key": "another"}).server()
    second = StorageOptions({"endpoint_url": "http://b"}).server()
    assert second == StorageOptions({"client_kwargs": {"endpoint_url": "http://b"}}).server()
    assert len({first, second, StorageOptions({"account_name": "a"}).server(), ""}) == 4
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://c")
    assert StorageOptions().server() not in ("", first)


def test_server_differs_for_different_accounts_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each account may have a container of the same name; a new key makes no other server."""
    found = set[str]()
    for account, key in (("pets", "1"), ("pets", "2"), ("cars", "1")):
        text = f"AccountName={account};AccountKey={key}==;EndpointSuffix=core.windows.net"
        found.add(StorageOptions({"connection_string": text}).server())
        found.add(StorageOptions({"account_name": account, "account_key": key}).server())
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        found.add(StorageOptions().server())
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
        found.add(StorageOptions().server())
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    assert len(found) == 2 * 4


@pytest.mark.parametrize("backend", Backend)
def test_backend_by_member_or_name(backend: Backend) -> None:
    """A name stands for its member, compares equal to it, and survives pickling."""
    named: Any = backend.value
    for options in (FetchOptions(backend=backend), FetchOptions(backend=named)):
        assert options.backend is backend
        assert options.backend == named
        assert pickle.loads(pickle.dumps(options)) == options
    assert FetchOptions().backend is Backend.AUTOMATIC


@pytest.mark.parametrize("wrong", ["s3fs", "OBSTORE", "", None, 1])
def test_another_backend_is_refused(wrong: Any) -> None:
    """The message has the value."""
    with pytest.raises((TypeError, ValueError), match="backend must be one of") as caught:
        FetchOptions(backend=wrong)
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache_dir": "/tmp/x"},
        {"cache_bytes": 10},
        {"cache_dir": "/tmp/x", "cache_bytes": 0},
        {"cache_dir": "/tmp/x", "cache_bytes": -3},
    ],
)
def test_a_cache_needs_folder_and_bound(wrong: dict[str, Any]) -> None:
    """One without the other, or a bound that holds nothing, is refused; the message names the option and the value."""
    with pytest.raises(ValueError, match=r"cache_bytes") as caught:
        FetchOptions(**wrong)
    assert all(
        str(value) in str(caught.value) for name, value in wrong.items() if name == "cache_bytes" or len(wrong) == 1
    )


def test_cache_is_off_unless_asked_for() -> None:
    """By default nothing is cached, and objects are returned in order."""
    assert (FetchOptions().cache_dir, FetchOptions().cache_bytes, FetchOptions().in_order) == (None, None, True)
    chosen = FetchOptions(cache_dir="/tmp/x", cache_bytes=1, in_order=False)
    assert (chosen.cache_dir, chosen.cache_bytes, chosen.in_order) == ("/tmp/x", 1, False)


@given(max_in_flight=st.integers(1, 500), max_buffer_bytes=st.integers(1, 1 << 32), num_lanes=st.integers(1, 300))
def test_parts_leave_room_in_the_buffer(max_in_flight: int, max_buffer_bytes: int, num_lanes: int) -> None:
    """Parts are 8 MiB, or so small that all in flight, and two of each lane, fill three quarters of the buffer."""
    options = FetchOptions(max_in_flight=max_in_flight, max_buffer_bytes=max_buffer_bytes)
    part_bytes, num_parts = options.actual_part_bytes(num_lanes=num_lanes), max(max_in_flight, 2 * num_lanes)
    assert 256 << 10 <= part_bytes <= 8 << 20, "smaller ones cost more than they bring"
    assert part_bytes == 256 << 10 or num_parts * part_bytes <= max_buffer_bytes * 3 / 4
    assert part_bytes == 8 << 20 or (part_bytes + 1) * num_parts > max_buffer_bytes * 3 / 4
    mapped_bytes = options.actual_part_bytes(mapped=True, num_lanes=num_lanes)
    assert 256 << 10 <= mapped_bytes <= 64 << 20
    assert mapped_bytes == 256 << 10 or 2 * num_lanes * mapped_bytes <= max_buffer_bytes


@given(
    max_in_flight=st.integers(1, 500),
    max_buffer_bytes=st.integers(1, 1 << 32),
    num_lanes=st.integers(1, 30),
    interleave=st.integers(2, 100),
)
def test_streams_read_in_turn_have_room_for_a_part_each(
    max_in_flight: int, max_buffer_bytes: int, num_lanes: int, interleave: int
) -> None:
    """For two if so many requests are allowed at once; parts are never larger than without interleaving."""
    options = FetchOptions(max_in_flight=max_in_flight, max_buffer_bytes=max_buffer_bytes, interleave=interleave)
    part_bytes, num_streams = options.actual_part_bytes(num_lanes=num_lanes), num_lanes * interleave
    assert part_bytes <= dataclasses.replace(options, interleave=1).actual_part_bytes(num_lanes=num_lanes)
    wanted_parts = 2 * num_streams if num_streams <= max_in_flight else num_streams
    assert part_bytes == 256 << 10 or wanted_parts * part_bytes <= max_buffer_bytes


def test_the_default_chain_has_parts_of_4_mib() -> None:
    """16 shards in turn, 16 requests and 128 MiB: two parts for each shard."""
    assert FetchOptions(interleave=16).actual_part_bytes() == 4 << 20
    assert FetchOptions().actual_part_bytes() == 6 << 20


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("num_lanes", [1, 100])
def test_parts_of_a_chosen_size_have_it(mapped: bool, num_lanes: int) -> None:
    """Whatever they are of, and however many read."""
    assert FetchOptions(part_bytes=7).actual_part_bytes(mapped=mapped, num_lanes=num_lanes) == 7


@given(lane_bytes=st.integers(1, 1 << 32), interleave=st.integers(1, 50))
def test_streams_that_are_read_at_once_have_equal_shares(lane_bytes: int, interleave: int) -> None:
    """Of what their lane has; a single one has no bound of its own."""
    share_bytes = FetchOptions(interleave=interleave).share_bytes(lane_bytes)
    if interleave == 1:
        assert share_bytes >= 1 << 60
    else:
        assert share_bytes * interleave <= lane_bytes < (share_bytes + 1) * interleave


DOWNLOADS = ("train_index", "train_classes", "val_index", "val_classes", "test_index")
LONG = {"aws_access_key_id": "CANARY-key", "aws_secret_access_key": "CANARY-secret"}
PERHAPS = {
    "aws_session_token": "CANARY-token",
    "bucket_name": "CANARY-bucket",
    **{f"{name}_file_download_url": f"s3://CANARY/{name}.json" for name in DOWNLOADS},
}


def credential_file(folder: Path, content: object) -> Path:
    path = folder / "credentials.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refusal(path: Path) -> str:
    """The message of the ValueError, after a look for canaries in all that could be shown of it."""
    with pytest.raises(ValueError, match=r"credentials\.json: ") as caught:
        StorageOptions.from_file(path)
    link: BaseException | None = caught.value
    while link is not None:
        assert "CANARY" not in f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def test_the_short_form_of_a_credential_file_is_read(tmp_path: Path) -> None:
    """Key and secret become the fallback, by a path of either type; there is nothing else."""
    path = credential_file(tmp_path, {"access_key": "CANARY-key", "secret": "CANARY-secret"})
    for options in (StorageOptions.from_file(path), StorageOptions.from_file(str(path))):
        assert dict(options) == {"fallback_key": "CANARY-key", "fallback_secret": "CANARY-secret"}
        assert (options.bucket_name, options.downloads) == (None, {})


@given(given_names=st.sets(st.sampled_from(sorted(PERHAPS))), empty=st.sampled_from([None, ""]))
def test_the_long_form_of_a_credential_file_is_read(
    tmp_path_factory: pytest.TempPathFactory, given_names: set[str], empty: str | None
) -> None:
    """Whatever of the further fields is there is found, what is empty is as absent; copies and pickles keep it all."""
    content = {**LONG, **{name: value if name in given_names else empty for name, value in PERHAPS.items()}}
    original = StorageOptions.from_file(credential_file(tmp_path_factory.mktemp("long"), content))
    for options in (original, StorageOptions(original), pickle.loads(pickle.dumps(original))):
        assert options.get("fallback_token") == (content["aws_session_token"] or None)
        assert {**options, "fallback_token": 0} == {
            "fallback_key": "CANARY-key",
            "fallback_secret": "CANARY-secret",
            "fallback_token": 0,
        }
        assert options.bucket_name == (content["bucket_name"] or None)
        assert options.downloads == {
            name: content[f"{name}_file_download_url"] for name in DOWNLOADS if content[f"{name}_file_download_url"]
        }
        for text in (repr(options), str(options), f"{options}", repr([options])):
            assert text.strip("[]").startswith("StorageOptions(fallback_key, fallback_secret")
            assert "CANARY" not in text


def test_downloads_are_the_readers_own(tmp_path: Path) -> None:
    """A change of what was handed out changes nothing in the options."""
    options = StorageOptions.from_file(credential_file(tmp_path, {**LONG, **PERHAPS}))
    options.downloads.clear()
    assert len(options.downloads) == len(DOWNLOADS)
    assert StorageOptions({"key": "a"}).downloads == {}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"access_key": "CANARY"}, "missing 'secret'"),
        ({"secret": "CANARY"}, "missing 'access_key'"),
        ({"access_key": "CANARY", "secret": ""}, "missing 'secret'"),
        ({"access_key": None, "secret": "CANARY"}, "missing 'access_key'"),
        ({"aws_access_key_id": "CANARY"}, "missing 'aws_secret_access_key'"),
        ({"aws_secret_access_key": "CANARY"}, "missing 'aws_access_key_id'"),
        ({}, "missing 'aws_access_key_id', 'aws_secret_access_key'"),
        ({"aws_access_key_id": "CANARY", "aws_secret_acces_key": "CANARY"}, "unknown 'aws_secret_acces_key'"),
        ({**LONG, "bucket": "CANARY"}, "unknown 'bucket'"),
        ({**LONG, "test_classes_file_download_url": "CANARY"}, "unknown 'test_classes_file_download_url'"),
        ({"access_key": "CANARY", "secret": "CANARY", "bucket_name": "CANARY"}, "unknown 'bucket_name'"),
        ({**LONG, "secret": "CANARY"}, "missing 'access_key'; unknown 'aws_access_key_id', 'aws_secret_access_key'"),
        ({**LONG, "bucket_name": ["CANARY"]}, "no text in 'bucket_name'"),
        ({"access_key": "CANARY", "secret": 12345}, "no text in 'secret'"),
        (["CANARY"], "it holds a list"),
        ("CANARY", "it holds a str"),
        (b"", "no JSON: .* in line 1, column 1"),
        (b'{"access_key": "CANARY",\n "secret": CANARY}', "no JSON: .* in line 2, column 12"),
        (b'{"secret": "CANARY\xff"}', "no JSON"),
        (b'{"CANARY": ' + b"[" * 100_000, "no JSON"),
        (b'{"secret": ' + b"1" * 5_000 + b"}", "no JSON"),
    ],
)
def test_other_files_than_credential_files_are_refused(tmp_path: Path, content: object, expected: str) -> None:
    """The message names the file, what is missing and what is not known, and never a value."""
    message = refusal(credential_file(tmp_path, content))
    assert re.search(expected, message), message
    assert "Expected" in message


def test_a_credential_file_that_is_not_there(tmp_path: Path) -> None:
    """The system's own error, with the name."""
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        StorageOptions.from_file(tmp_path / "nowhere.json")
