"""``ShardWriter``: every sample once, in shards that are whole or not there, with a manifest that is written last."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import stat
import sys
import tarfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.audited import Gate, audited
from tests.support.shard_places import Place, memory_place
from tests.support.waiting import new_threads
from tests.support.written import check_beside, listed, read, told, unpacked, with_beside, without_url
from torchdata_remote.errors import (
    EncodeError,
    ManifestError,
    ObjectExistsError,
    RemoteDataError,
    ShardWriteError,
    StorageError,
    UrlError,
)
from torchdata_remote.testing import Faults, FaultyStore

Sample = dict[str, Any]
MEMBER = st.sampled_from([0, 1, 511, 512, 513, 8192, 8193]).map(lambda size: b"x" * size) | st.binary(max_size=2000)
# Some keys are too long for ustar's name field, or not ASCII, so that their headers take more bytes.
KEYS = st.builds(
    lambda folder, base: f"{folder}{base}",
    st.sampled_from(["", "a/", "p" * 94 + "/", "p" * 160 + "/", "é/"]),
    st.text("abcd01é ", min_size=1, max_size=6),
)
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {"__key__": key, **members},
        KEYS,
        st.dictionaries(st.sampled_from(["cls", "jpg", "seg.png"]), MEMBER, min_size=1),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda sample: sample["__key__"],
)


@pytest.fixture(params=["memory", "local"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder in each store that needs no server."""
    return memory_place() if request.param == "memory" else Place(f"{tmp_path}/shards/")


def write(to: Place, samples: list[Sample], name: str = "{shard}.tar", **options: Any) -> tdr.ShardWriter:
    with tdr.ShardWriter(f"{to.url}{name}", storage_options=to.options, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def fail(writer: tdr.ShardWriter, samples: list[Sample], error: BaseException) -> None:
    """Write samples, then raise within the ``with`` block."""
    with writer:
        for sample in samples:
            writer.write(sample)
        raise error


def write_all(writer: tdr.ShardWriter, samples: list[Sample]) -> None:
    for sample in samples:
        writer.write(sample)
    writer.close()


def numbered(count: int, size: int = 10) -> list[Sample]:
    return [{"__key__": f"{i:03d}", "bin": bytes([i]) * size} for i in range(count)]


# Limits and contents


@given(samples=SAMPLES, max_shard_bytes=st.integers(1, 12_000), max_shard_samples=st.integers(1, 5))
@example(samples=numbered(2, 512), max_shard_bytes=1024 + 2 * 1024, max_shard_samples=5)
@example(samples=numbered(2, 512), max_shard_bytes=1024 + 2 * 1024 - 1, max_shard_samples=5)
def test_shards_are_filled_exactly_to_their_limits_and_all_samples_come_back_in_order(
    samples: list[Sample], max_shard_bytes: int, max_shard_samples: int
) -> None:
    to, single = memory_place(), memory_place()
    shards = write(to, samples, max_shard_bytes=max_shard_bytes, max_shard_samples=max_shard_samples).shards
    assert read(to) == samples
    assert told(shards) == listed(to)
    assert sorted(to.files()) == sorted([*with_beside(*(f"{n}.tar" for n in range(len(shards)))), "index.json"])
    check_beside(to)
    alone = [shard.num_bytes - 1024 for shard in write(single, samples, max_shard_samples=1).shards]
    first = 0
    for shard in shards:
        assert shard.num_bytes == sum(alone[first : first + shard.num_samples]) + 1024
        assert shard.num_bytes <= max_shard_bytes or shard.num_samples == 1
        assert 1 <= shard.num_samples <= max_shard_samples
        first += shard.num_samples
        if first < len(samples):
            fits = shard.num_bytes + alone[first] <= max_shard_bytes and shard.num_samples < max_shard_samples
            assert not fits, "the next sample had room in this shard"


@given(samples=SAMPLES, max_shard_bytes=st.integers(1, 12_000), ending=st.sampled_from([".tar.gz", ".tgz", ".tar.zst"]))
def test_compressed_shards_hold_what_plain_ones_do_and_limits_count_bytes_of_the_tar(
    samples: list[Sample], max_shard_bytes: int, ending: str
) -> None:
    plain, to = memory_place(), memory_place()
    write(plain, samples, max_shard_bytes=max_shard_bytes)
    shards = write(to, samples, f"{{shard}}{ending}", max_shard_bytes=max_shard_bytes).shards
    assert told(shards) == listed(to)
    check_beside(to)
    files = to.files()
    tars = {name: data for name, data in plain.files().items() if name.endswith(".tar")}
    assert {name.replace(".tar", ending): data for name, data in tars.items()} == {
        name: unpacked(name, data) for name, data in files.items() if name != "index.json"
    }
    found = tdr.IterableWrapper([f"{to.url}"]).list_remote(pattern=f"*{ending}")
    assert without_url(tdr.pipes.ShardTarReader(found)) == samples


def test_the_bytes_of_shards_are_those_of_earlier_releases() -> None:
    """Else each finished shard would look damaged."""
    samples = [
        {
            "__key__": f"n{i % 3}/{'long/' * (i % 60)}{i:04d}{'é' if i % 17 == 0 else ''}",
            "cls": i,
            "txt": "wren\n" * i,
            "seg.png": bytes([i]) * (i * 37),
            "jpg": bytes(range(256)) * (i % 50),
        }
        for i in range(200)
    ]
    assert [shard.md5 for shard in write(memory_place(), samples, max_shard_samples=120).shards] == [
        "e55538a1c89deda65dc22371805a5347",
        "645978592943d6d831fe40a8d3d9ec81",
    ]


def test_a_shard_is_a_plain_tar_whose_members_are_sorted_by_extension(tmp_path: Path) -> None:
    write(Place(f"{tmp_path}/"), [{"__key__": "b/1", "txt": "x", "cls": 1}, {"__key__": "a/2", "cls": 2}])
    with tarfile.open(tmp_path / "0.tar") as archive:
        assert [info.name for info in archive] == ["b/1.cls", "b/1.txt", "a/2.cls"]
        assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in archive} == {(0, 0, 0, "", 0o644)}


def test_values_are_encoded_by_their_extension_and_bytes_stay_as_they_are() -> None:
    jpeg, to = b"\xff\xd8 whatever \xff\xd9", memory_place()
    write(
        to, [{"__key__": "a", "cls": 3, "txt": "é", "png": Image.new("RGB", (2, 2)), "jpg": jpeg, "npy": np.arange(2)}]
    )
    (got,) = read(to)
    assert (got["cls"], got["txt"], got["jpg"]) == (b"3", "é".encode(), jpeg)
    assert got["png"].startswith(b"\x89PNG")
    assert np.load(io.BytesIO(got["npy"])).tolist() == [0, 1]


def test_a_view_of_a_buffer_that_is_used_again_is_written_as_it_was() -> None:
    to, buffer = memory_place(), bytearray(b"a" * 100)
    with tdr.ShardWriter(to.template()) as writer:
        writer.write({"__key__": "a", "bin": memoryview(buffer)})
        buffer[:] = b"b" * 100
    assert to.members() == {"a.bin": b"a" * 100}


def test_names_that_begin_with_underscores_are_not_written() -> None:
    to = memory_place()
    write(to, [{"__key__": "a", "__url__": "s3://b/old.tar", "__epoch__": 3, "txt": b"hi"}])
    assert to.members() == {"a.txt": b"hi"}


def test_each_finished_shard_is_returned_once_by_write_or_close(folder: Place) -> None:
    writer = tdr.ShardWriter(f"{folder.url}{{shard}}.tar", max_shard_samples=2)
    returned: list[tdr.ShardInfo] = []
    for number, sample in enumerate(numbered(9)):
        shard = writer.write(sample)
        if shard is not None:
            returned.append(shard)
            assert shard.url.rpartition("/")[2] in folder.files()
        assert max(0, number // 2 - 1) <= len(returned) <= number // 2
        assert tuple(returned) == writer.shards
    assert (*returned, *writer.close()) == writer.shards
    assert [(name, count) for name, count, _, _ in told(writer.shards)] == [
        *((f"{n}.tar", 2) for n in range(4)),
        ("4.tar", 1),
    ]
    assert writer.close() == ()


# Whole or not at all


def test_objects_appear_whole_and_the_manifest_last(tmp_path: Path) -> None:
    to, seen = Place(f"{tmp_path}/"), []
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2) as writer:
        for sample in numbered(6, 2_000_000):
            writer.write(sample)
            names = [name for name in sorted(os.listdir(tmp_path)) if not name.startswith((".", "_unfinished"))]
            seen.append({name: (tmp_path / name).read_bytes() for name in names})
    files = to.files()
    assert {"0.tar", "0.tar.idx", "0.tar.keys"} <= set(seen[-1])
    assert sorted(files) == [*with_beside("0.tar", "1.tar", "2.tar"), "index.json"]
    assert all(early.items() <= files.items() and "index.json" not in early for early in seen)
    assert read(to) == numbered(6, 2_000_000)


def test_on_s3_a_shard_its_index_and_its_keys_are_stored_before_the_manifest(moto: S3Server) -> None:
    to = Place(f"s3://{moto.new_bucket()}/", moto)
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        with tdr.ShardWriter(f"{to.url}{{shard}}.tar", max_shard_samples=2, storage_options=options) as writer:
            for sample in numbered(5):
                writer.write(sample)
        put = [request.path.rpartition("/")[2] for request in store.requests if request.method == "PUT"]
    names = [f"{i}.tar{ending}" for i in range(3) for ending in ("", ".idx", ".keys")]
    assert [name for name in put if not name.startswith("_unfinished")] == [*names, "index.json"]
    assert read(to) == numbered(5)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("written", range(6))
def test_an_exception_leaves_whole_shards_and_no_manifest(folder: Place, error: BaseException, written: int) -> None:
    writer = tdr.ShardWriter(f"{folder.url}{{shard}}.tar", max_shard_samples=2)
    with pytest.raises(type(error)) as caught:
        fail(writer, numbered(written, 600_000), error)
    assert caught.value is error
    finished = max(0, (written - 1) // 2)
    assert sorted(folder.files()) == with_beside(*(f"{i}.tar" for i in range(finished)))
    assert len(writer.shards) == finished
    assert list(folder.members()) == [f"{i:03d}.bin" for i in range(2 * finished)]
    with pytest.raises(ShardWriteError, match="aborted"):
        writer.write({"__key__": "later", "x": b""})


def test_a_refused_sample_leaves_no_trace_in_the_shard() -> None:
    to = memory_place()
    refused: list[Any] = [
        {"__key__": "x", "a": b"1", "b": None},
        {"__key__": "x.y", "a": b"1"},
        {"__key__": "000", "a": b"1"},
        {"__key__": "x"},
        None,
    ]
    with tdr.ShardWriter(f"{to.url}{{shard}}.tar") as writer:
        for sample in numbered(4):
            writer.write(sample)
            for bad in refused:
                with pytest.raises((ShardWriteError, EncodeError)):
                    writer.write(bad)
    assert read(to) == numbered(4)
    assert writer.shards[0].num_samples == 4


def test_a_shard_that_failed_prevents_the_manifest_even_if_the_error_was_caught(tmp_path: Path) -> None:
    writer = tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=1)
    writer.write({"__key__": "a", "x": b""})
    (tmp_path / "0.tar").write_bytes(b"of somebody else")
    with pytest.raises(ObjectExistsError, match=r"0\.tar"):
        write_all(writer, [{"__key__": "b", "x": b""}, {"__key__": "c", "x": b""}])
    assert Place(f"{tmp_path}/").files() == {"0.tar": b"of somebody else"}
    (tmp_path / "0.tar").unlink()
    with contextlib.suppress(RemoteDataError, ValueError):
        writer.write({"__key__": "c", "x": b""})
    with pytest.raises((RemoteDataError, ValueError)):
        writer.close()
    assert Place(f"{tmp_path}/").files() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_disk_that_was_full_for_a_while_prevents_the_shard(tmp_path: Path) -> None:
    import resource

    writer = tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar")
    writer.write({"__key__": "a", "x": bytes(1_500_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match=r"0\.tar"):
            write_all(writer, numbered(10, 5_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with contextlib.suppress(RemoteDataError, ValueError):
        writer.write({"__key__": "c", "x": bytes(1_500_000)})
    with pytest.raises((RemoteDataError, ValueError)):
        writer.close()
    assert Place(f"{tmp_path}/").files() == {}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("ending", ["idx", "keys"])
def test_without_its_index_or_keys_there_is_no_manifest(tmp_path: Path, number: int, ending: str) -> None:
    (tmp_path / f"{number}.tar.{ending}").mkdir()
    (tmp_path / f"{number}.tar.{ending}" / "in the way").touch()
    writer = tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=1, overwrite=True)
    with pytest.raises(StorageError, match=rf"{number}\.tar\.{ending}"):
        write_all(writer, numbered(3))
    with pytest.raises((RemoteDataError, ValueError)):
        writer.close()
    assert "index.json" not in os.listdir(tmp_path)


def test_a_closed_writer_refuses_samples_and_may_be_closed_again() -> None:
    to = memory_place()
    with tdr.ShardWriter(f"{to.url}{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "x": b""})
        writer.close()
    before = to.files()
    assert sorted(before) == [*with_beside("0.tar"), "index.json"]
    with pytest.raises(ShardWriteError, match="is closed"):
        writer.write({"__key__": "later", "x": b""})
    assert to.files() == before


def test_no_samples_are_an_error_and_leave_nothing(folder: Place) -> None:
    with pytest.raises(ShardWriteError, match="no sample"), tdr.ShardWriter(f"{folder.url}{{shard}}.tar"):
        pass
    assert folder.files() == {}


# In the background


def test_the_next_shard_is_packed_while_one_is_finished(tmp_path: Path) -> None:
    gate, samples = Gate(".tar"), iter(numbered(5))
    writer = tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    with audited(gate):
        assert [writer.write(next(samples)) for _ in range(3)] == [None] * 3
        assert gate.waiting.acquire(timeout=60)
        assert writer.write(next(samples)) is None
        assert writer.shards == ()
        gate.open(3)
        first = writer.write(next(samples))
        assert first is not None
        assert first.url == f"file://{tmp_path}/0.tar"
        assert [shard.num_samples for shard in writer.close()] == [2, 1]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_abort_waits_for_the_full_shard_drops_the_open_one_and_ends_all_threads(
    tmp_path: Path, error: BaseException
) -> None:
    gate, before = Gate(".tar"), set(threading.enumerate())
    writer = tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)

    def let_through() -> None:
        assert gate.waiting.acquire(timeout=60)
        gate.open()

    with audited(gate):
        opening = threading.Thread(target=let_through)
        opening.start()
        with pytest.raises(type(error)):
            fail(writer, numbered(4, 5_000_000), error)
        opening.join()
    assert not new_threads(before)
    assert sorted(os.listdir(tmp_path)) == with_beside("0.tar")
    assert [shard.num_samples for shard in writer.shards] == [2]


def test_a_forgotten_writer_leaves_whole_shards_only_and_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    writer = tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    for sample in numbered(3, 5_000_000):
        writer.write(sample)
    del writer
    gc.collect()
    while left := new_threads(before):
        for thread in left:
            with contextlib.suppress(RuntimeError):  # it is about to be started
                thread.join()
    assert sorted(os.listdir(tmp_path)) == sorted([*with_beside("0.tar"), "_unfinished-job.json"])


def test_a_forked_child_of_a_writer_is_refused_and_the_writer_goes_on() -> None:
    """Its threads stayed with the parent: it would wait for ever, or write the same shard."""
    to, samples = memory_place(), numbered(3, 6_000_000)
    with tdr.ShardWriter(to.template()) as writer:
        writer.write(samples[0])
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with contextlib.suppress(RuntimeError, RemoteDataError):
                write_all(writer, samples[1:])
                os._exit(1)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        for sample in samples[1:]:
            writer.write(sample)
    assert read(to) == samples


@pytest.mark.parametrize("sample_bytes", [50_000, 3_000_000])
def test_memory_is_bounded_whatever_the_size_of_samples(tmp_path: Path, sample_bytes: int) -> None:
    data = bytes(sample_bytes)
    tracemalloc.start()
    try:
        with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_bytes=20_000_000) as writer:
            for i in range(120_000_000 // sample_bytes):
                writer.write({"__key__": f"{i}", "bin": data[:-1] + b"."})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(writer.shards) > 5
    assert peak_bytes < 2 * ((32 << 20) + 8 * sample_bytes), "twice what is documented"


def test_shards_of_several_parts_are_whole_on_s3_and_an_abort_leaves_no_upload(moto: S3Server) -> None:
    to, samples = Place(f"s3://{moto.new_bucket()}/", moto), numbered(6, 6_000_000)
    write(to, samples, max_shard_samples=3)
    assert read(to) == samples
    again = tdr.ShardWriter(f"{to.url}b/{{shard}}.tar", max_shard_samples=3, storage_options=moto.storage_options)
    with pytest.raises(LookupError):
        fail(again, samples, LookupError())
    assert [shard.num_samples for shard in again.shards] == [3]
    assert to.uploads() == []


def test_what_a_store_refuses_for_a_while_is_sent_again(moto: S3Server) -> None:
    to = Place(f"s3://{moto.new_bucket()}/", moto)
    with FaultyStore(moto.endpoint_url, Faults(slow_down=0.3, methods=frozenset({"PUT"})), seed=2) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        writer = tdr.ShardWriter(f"{to.url}{{shard}}.tar", max_shard_samples=2, storage_options=options)
        write_all(writer, numbered(6))
        assert store.counts["slow_down"]
    assert read(to) == numbered(6)


# What is there already


@pytest.mark.parametrize("existing", ["t-000.tar", "t-007.tar", "t-003.tar.idx", "t-003.tar.keys", "index.json"])
def test_nothing_is_overwritten_unless_asked_for(folder: Place, existing: str) -> None:
    if existing == "index.json":
        write(folder, numbered(1), "t-{shard:03d}.tar")
        for name in with_beside("t-000.tar"):
            folder.delete(name)
    else:
        folder.put({existing: b"of somebody else"})
    before = folder.files()
    writer = tdr.ShardWriter(f"{folder.url}t-{{shard:03d}}.tar")
    for enters in (True, False, False):
        with pytest.raises(ObjectExistsError, match=rf"{existing}.*overwrite=True") as caught:
            writer.__enter__() if enters else writer.write({"__key__": "a", "x": b""})
        assert isinstance(caught.value, FileExistsError)
    assert folder.files() == before


def test_an_object_written_meanwhile_is_not_overwritten(place: Place) -> None:
    writer = tdr.ShardWriter(f"{place.url}{{shard}}.tar", storage_options=place.options)
    writer.write({"__key__": "a", "x": b"mine"})
    place.put({"0.tar": b"of somebody else"})
    with pytest.raises(ObjectExistsError, match=r"0\.tar"):
        writer.close()
    assert place.files() == {"0.tar": b"of somebody else"}


def test_a_manifest_written_meanwhile_is_not_overwritten(place: Place) -> None:
    writer = tdr.ShardWriter(f"{place.url}{{shard}}.tar", storage_options=place.options)
    writer.write({"__key__": "a", "x": b"mine"})
    place.put({"index.json": b"of somebody else"})
    with pytest.raises(ObjectExistsError, match=r"index\.json"):
        writer.close()
    assert place.files()["index.json"] == b"of somebody else"


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_overwrite_leaves_what_a_first_run_would_have_made(folder: Place, ending: str) -> None:
    fresh, name = memory_place(), f"{{shard}}{ending}"
    write(folder, numbered(9, 3000), name, max_shard_samples=2)
    folder.put({f"1{ending}.idx": b"old", f"7{ending}": b"old", f"7{ending}.keys": b"old"})
    write(folder, numbered(3), name, max_shard_samples=2, overwrite=True)
    write(fresh, numbered(3), name, max_shard_samples=2)
    assert folder.files() == fresh.files()


def test_overwrite_keeps_files_that_do_not_match_the_template_and_those_of_other_folders(folder: Place) -> None:
    others = {
        name: name.encode()
        for name in (
            *("notes.txt", "v-000.tar", "t-x.tar", "t-7.tar", "t-0000007.tar", "t-007.tar.gz", "at-007.tar"),
            *("t-\u0660\u0660\u0667.tar", "t-007.tar.bak", "val/t-007.tar", "_sources"),
        )
    }
    folder.put({**others, "t-007.tar": b"left over", "t-1007.tar": b"left over"})
    write(folder, numbered(1), "t-{shard:03d}.tar", overwrite=True)
    files = folder.files()
    assert sorted(files) == sorted([*others, *with_beside("t-000.tar"), "index.json"])
    assert others.items() <= files.items()


def test_a_broken_rewrite_leaves_no_old_description(folder: Place) -> None:
    write(folder, numbered(4), max_shard_samples=1)
    described = {"classes.json": b"{}", "provenance.json": b"{}", "provenance-000002.json": b"{}"}
    folder.put({**described, "provenance-x.json": b"another's"})
    writer = tdr.ShardWriter(f"{folder.url}{{shard}}.tar", max_shard_samples=1, overwrite=True)
    with pytest.raises(LookupError):
        fail(writer, numbered(3, 77), LookupError())
    left = [*with_beside(*(f"{i}.tar" for i in range(4))), "provenance-x.json", "_unfinished-job.json"]
    assert sorted(folder.files()) == sorted(left)


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_manifest_of_something_else_is_kept(overwrite: bool) -> None:
    other, foreign = memory_place(), memory_place()
    write(other, numbered(1), "train-{shard}.tar")
    before = other.files()
    with pytest.raises(ObjectExistsError, match=r"train-0\.tar.*another folder"):
        write(other, numbered(1), "val-{shard}.tar", overwrite=overwrite)
    assert other.files() == before
    foreign.put({"index.json": b'{"pages": 3}'})
    with pytest.raises(ManifestError, match=r"index\.json"):
        write(foreign, numbered(1), overwrite=overwrite)
    assert foreign.files() == {"index.json": b'{"pages": 3}'}


# Bad input


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"__key__": "a.b", "x": b""}, "'a.b'"),
        ({"__key__": "a", "JPG": b""}, "'JPG'"),
        ({"__key__": "../a", "x": b""}, "leaves its folder"),
        ({"__key__": "a/../../b", "x": b""}, "leaves its folder"),
        ({"__key__": "/a", "x": b""}, "absolute"),
        ({"__key__": "", "x": b""}, "no key"),
        ({"__key__": "a"}, "no members"),
        ({"x": b""}, "__key__"),
        ({"__key__": "__a", "x__": b""}, "__a"),
        ({"__key__": "\ud800", "x": b""}, "ud800"),
        ({"__key__": "a\0b", "x": b""}, "cannot be written"),
        ({"__key__": "n" * 4094, "x.y": b""}, "characters"),
        ({"__key__": "a", "txt": "\ud800"}, "'txt'"),
        ({"__key__": "a", "cls": True}, "bool"),
        ({"__key__": "a", "cls": None}, "NoneType"),
        ({"__key__": "a", "cls": 0.5}, "float"),
        ({"__key__": "a", "x": b"12345"}, "max_member_bytes=4"),
        ({"__key__": "a", "txt": "12345"}, "max_member_bytes=4"),
    ],
)
def test_a_sample_that_readers_would_not_return_is_refused(sample: Sample, says: str) -> None:
    to = memory_place()
    with pytest.raises((ShardWriteError, EncodeError)) as caught:
        write(to, [sample], max_member_bytes=4)
    assert says in str(caught.value)
    if isinstance(sample.get("__key__"), str):
        assert repr(sample["__key__"])[:150] in str(caught.value)
    assert to.files() == {}


def test_the_largest_member_and_the_longest_name_are_written_and_read() -> None:
    to = memory_place()
    write(to, [{"__key__": "n" * 4094, "x": b"1234"}], max_member_bytes=4)
    assert read(to) == [{"__key__": "n" * 4094, "x": b"1234"}]


def test_a_key_twice_in_a_shard_is_refused_and_in_another_shard_it_is_no_fault() -> None:
    to, apart = memory_place(), memory_place()
    with pytest.raises(ShardWriteError, match=r"0\.tar.*'000'"):
        write(to, [*numbered(2), *numbered(1)])
    assert to.files() == {}
    write(apart, [*numbered(1), *numbered(1)], max_shard_samples=1)
    assert len(read(apart)) == 2


@pytest.mark.parametrize("options", [{"max_shard_bytes": 0}, {"max_shard_samples": 0}, {"max_member_bytes": 0}])
def test_limits_that_cannot_be_kept_are_refused_when_the_writer_is_built(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be an int of at least 1"):
        tdr.ShardWriter("memory://x/{shard}.tar", **options)


def test_a_store_that_cannot_be_written_is_refused_on_entering() -> None:
    with pytest.raises(UrlError, match="nosuchscheme"), tdr.ShardWriter("nosuchscheme://b/{shard}.tar"):
        pytest.fail("the writer was entered")


# Templates


INVALID = [
    *("{x}t.tar", "{shard}-{shard}.tar", "{index}.tar", "{}.tar", "{0}.tar", "{shard}/t.tar", "{shard}/{shard}.tar"),
    *("{{shard}}.tar", "{shard.tar", "shard}.tar", "{shard:q}.tar", "{shard.real}.tar", "{shard[0]}.tar", "t.tar"),
    *("{shard}.tar.xz", "{shard}.gz", "{shard}", "{shard}.zip", "{shard:{shard}}.tar", "{shard!r}.tar"),
    *("{shard:x}.tar", "{shard:>6}.tar", "{shard:,}.tar", "{shard:+d}.tar", "{shard:6d}.tar", "{shard:06.0f}.tar", ""),
]


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_template_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ShardWriteError) as caught:
        tdr.ShardWriter(f"s3://b/{name}")
    assert f"s3://b/{name}" in str(caught.value)
    assert "{shard:06d}.tar" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["{shard}", "{shard:d}", "{shard:06d}", "{shard:01d}", "a{{b}}-{shard:03d}-{{c}}", "x.+({shard})"]
)
def test_a_writer_finds_the_shards_of_its_template_again(folder: Place, name: str) -> None:
    written = f"{name}.tar".format
    write(folder, numbered(13), f"{name}.tar", max_shard_samples=1)
    assert {written(shard=number) for number in range(13)} < set(folder.files())
    write(folder, numbered(2), f"{name}.tar", max_shard_samples=1, overwrite=True)
    assert sorted(folder.files()) == sorted([*with_beside(written(shard=0), written(shard=1)), "index.json"])


def test_no_error_of_a_template_shows_credentials() -> None:
    for template in ("s3://me:SECRET@b/t.tar", "s3://me:SECRET@b/{shard}.tar", "https://me:SECRET@b/{shard}.tar"):
        with pytest.raises(RemoteDataError) as caught:
            tdr.ShardWriter(template)
        assert "SECRET" not in f"{caught.value} {caught.value.url}"


# Local disk


def test_bare_paths_and_file_urls_are_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"url": f"file://{tmp_path}/url/", "absolute": f"{tmp_path}/absolute/", "relative": "relative/"}
    for name, url in places.items():
        with tdr.ShardWriter(f"{url}t-{{shard}}.tar", max_shard_samples=2) as writer:
            for sample in numbered(3):
                writer.write(sample)
        assert [shard.url for shard in writer.shards] == [f"file://{tmp_path}/{name}/t-{i}.tar" for i in range(2)]
    first, *others = (Place(f"{tmp_path}/{name}/").files() for name in places)
    assert others == [first, first]


def test_files_have_the_rights_of_other_files(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write(Place(f"{tmp_path}/"), numbered(1))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}
