"""Selected samples of shards: which requests bring them, in which order, and through which faults."""

from __future__ import annotations

import gc
import random
import tarfile
import threading
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.scripted import Response, scripted
from tests.support.archive_bytes import pack_tar
from tests.support.scripted_store import AT_ONCE, ScriptedStore, held_by, store_of
from tests.support.shard_places import memory_place, tar_of
from tests.support.waiting import new_threads, wait_for
from torchdata_remote.errors import ManifestError, ObjectChangedError, ShardReadError

END_S = 60
BLOCK = 512


def shards_of(samples: list[dict[str, bytes]], max_shard_samples: int) -> dict[str, bytes]:
    """Files that ``ShardWriter`` writes."""
    place = memory_place()
    with tdr.ShardWriter(place.template(), max_shard_samples=max_shard_samples) as writer:
        for sample in samples:
            writer.write(dict(sample))
    return place.files()


def sample_of(number: int, num_bytes: int) -> dict[str, Any]:
    return {"__key__": f"{number:04d}", "cls": b"%d" % number, "jpg": random.Random(number).randbytes(num_bytes)}


def selected(
    store: ScriptedStore, keys: Any, *, members: Any = None, pattern: str | None = None, **options: Any
) -> Any:
    """A chain that reads selected samples by the manifest of the store, or by a listing."""
    source = tdr.IterableWrapper([store.url + ("" if pattern else "index.json")]).list_remote(pattern=pattern)
    chosen = source.select(keys=keys, members=members) if keys is not None else source
    return chosen.async_prefetch(**{"retry": AT_ONCE, **options})


SAMPLES = [sample_of(number, 700 * number % 6_000) for number in range(40)]
FILES = shards_of(SAMPLES, 9)


@given(
    numbers=st.sets(st.integers(0, 39), min_size=1),
    members=st.sampled_from([None, ["cls"], ["jpg"], ["jpg", "cls"], ["jpg;cls"]]),
    limits=st.tuples(st.integers(1, 12), st.integers(1, 60), st.integers(1, 4)),
    interleave=st.integers(1, 3),
    from_manifest=st.booleans(),
)
def test_selected_samples_come_in_the_order_of_the_shards_within_any_limits(
    numbers: set[int], members: Any, limits: tuple[int, int, int], interleave: int, from_manifest: bool
) -> None:
    names = {"jpg"} if members == ["jpg;cls"] else {"jpg", "cls"} if members is None else set(members)
    expected = [{name: SAMPLES[at][name] for name in ("__key__", *sorted(names))} for at in sorted(numbers)]
    part_blocks, budget_blocks, in_flight = limits
    with store_of(FILES) as store:
        keys = [SAMPLES[at]["__key__"] for at in numbers]
        chain = selected(
            store, keys, members=members, pattern=None if from_manifest else "*.tar", part_bytes=part_blocks * BLOCK,
            max_buffer_bytes=budget_blocks * BLOCK, max_in_flight=in_flight, interleave=interleave,
        )  # fmt: skip
        assert [{name: one[name] for name in one if name != "__url__"} for one in chain.shard_tar_reader()] == expected


def requested(store: ScriptedStore) -> list[tuple[str, int, int]]:
    """Requests for bytes of shards."""
    return [tuple(read) for read in store.reads if read.name.endswith(".tar")]  # type: ignore[misc]


LARGE = [sample_of(number, 94_000) for number in range(400)]


@pytest.fixture(scope="module")
def large() -> dict[str, bytes]:
    return shards_of(LARGE, 200)


@pytest.mark.parametrize(
    ("chosen", "most"), [(range(0, 400, 40), 10), (range(100, 130), 1), (range(0, 400, 2), 8), (range(400), 8)], ids=str
)
def test_requests_are_few_and_bring_little_more_than_what_is_selected(
    large: dict[str, bytes], chosen: range, most: int
) -> None:
    with store_of(large) as store:
        keys = [LARGE[at]["__key__"] for at in chosen]
        got = [sample["__key__"] for sample in selected(store, keys, part_bytes=8 << 20).shard_tar_reader()]
        assert got == keys
        assert len([read for read in store.reads if read.name.endswith(".keys")]) == 2, "each once"
        ranges = requested(store)
        wanted = len(chosen) * (94_000 + 3 * BLOCK)
        unwanted = sum(end - start for _, start, end in ranges) - wanted
        assert unwanted <= 0.3 * wanted + 2 * (8 << 20)
        assert len(ranges) <= most


def test_memory_is_bounded_while_the_consumer_waits_and_threads_end_with_the_pass() -> None:
    before = set(threading.enumerate())
    with store_of(FILES) as store:
        keys = [sample["__key__"] for number, sample in enumerate(SAMPLES) if number % 9 < 8]
        streams = iter(selected(store, keys, part_bytes=8 * BLOCK, max_buffer_bytes=32 * BLOCK))
        opened = next(streams)
        wait_for(lambda: len(requested(store)) >= 2 and store.running == 0)
        assert sum(end - start for _, start, end in requested(store)) <= 32 * BLOCK
        del streams, opened
        gc.collect()
    wait_for(lambda: not new_threads(before))


def test_small_selections_of_many_shards_are_requested_at_once() -> None:
    files, barrier = shards_of(SAMPLES, 5), threading.Barrier(4)
    with store_of(files) as store:
        urls = list(
            tdr.IterableWrapper([f"{store.url}index.json"]).list_remote().select(keys=["0000", "0005", "0010", "0015"])
        )
        store.before_read = held_by(barrier)  # broken if fewer come
        got = [sample["cls"] for sample in tdr.IterableWrapper(urls).async_prefetch(max_in_flight=4).shard_tar_reader()]
        assert got == [b"0", b"5", b"10", b"15"]


def test_faults_are_repeated_and_an_error_names_the_shard() -> None:
    with store_of(dict(FILES)) as store:
        names = sorted(name for name in FILES if name.endswith(".tar"))
        failures = iter([True, True, True])

        def before_read(name: str, start: int) -> None:
            if name.endswith(".tar") and next(failures, False):
                raise ConnectionError("busy")

        store.before_read = before_read
        keys = ["0001", "0010", "0020"]
        assert [sample["__key__"] for sample in selected(store, keys).shard_tar_reader()] == keys
        failures = iter(())
        denied = names[1]

        def deny(name: str, start: int) -> None:
            if name == denied:
                raise PermissionError("denied")

        store.before_read = deny
        got = []
        with pytest.raises(tdr.errors.AccessDeniedError, match=denied):  # noqa: PT012
            for sample in selected(store, keys).shard_tar_reader():
                got.append(sample["__key__"])
        assert got == ["0001"]


@pytest.mark.parametrize("how", ["etag", "longer", "shorter"])
@pytest.mark.parametrize("read_before", [0, BLOCK])
@pytest.mark.parametrize("has_etags", [True, False])
def test_a_shard_that_is_replaced_after_it_was_selected_is_an_error(
    how: str, read_before: int, has_etags: bool
) -> None:
    with store_of(dict(FILES)) as store:
        store.has_etags = has_etags
        name, keys = min(name for name in FILES if name.endswith(".tar")), ["0001", "0003", "0006", "0030"]
        limits = {"max_in_flight": 1, "part_bytes": BLOCK, "max_buffer_bytes": BLOCK}
        _, whole = next(iter(selected(store, keys, pattern="*.tar")))
        old = whole.read()
        _, stream = next(iter(selected(store, keys, pattern="*.tar", **limits)))
        first = stream.read(read_before)
        changed = FILES[name][:-1] + b"x"
        new = {"etag": changed, "longer": FILES[name] + bytes(BLOCK), "shorter": FILES[name][:BLOCK]}
        store.objects[name] = new[how]
        if how == "etag" and not has_etags:
            assert first + stream.read() == old, "of the selected samples nothing has changed"
        else:
            with pytest.raises(ObjectChangedError, match=name):
                stream.read()
        stream.close()


# --- files of keys beside shards


def keys_beside(tar: bytes, **index: bytes) -> bytes:
    """The file of keys that the package writes beside a tar."""
    place = memory_place()
    place.put({"0.tar": tar})
    tdr.index_shards(place.url)
    return place.files()["0.tar.keys"]


def read_keys(tar: bytes, keys: bytes | None, *, wanted: Any = None, **known: Any) -> list[str]:
    """Keys of the samples of a shard without a manifest, which are found by the file beside it, or by its headers."""
    with store_of({"0.tar": tar, **({} if keys is None else {"0.tar.keys": keys})}) as store:
        url = tdr.RemoteUrl(f"{store.url}0.tar", len(tar), store.etag("0.tar"), **known)
        found: list[str] = []

        def is_wanted(sample: tdr.pipes.IndexedSample) -> bool:
            found.append(sample.key)
            return sample.key != "no"

        urls = tdr.IterableWrapper([url]).select(where=is_wanted)
        samples = [sample["__key__"] for sample in urls.shard_tar_reader()]
        assert samples == [key for key in found if key != "no"]
        return found


SMALL = [("a.jpg", b"12"), ("a.cls", b"3"), ("b.jpg", b"4567"), ("b.cls", b"8")]


@given(
    samples=st.lists(st.lists(st.integers(0, 3_000), min_size=1, max_size=3), min_size=1, max_size=12),
    kind=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    key_length=st.sampled_from([1, 30, 180]),
    wanted=st.sets(st.integers(0, 11), min_size=1),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_samples_of_any_tar_are_found_by_its_headers_and_by_the_file_beside_it(
    samples: list[list[int]], kind: int, key_length: int, wanted: set[int]
) -> None:
    suffix = "é" * key_length if kind != tarfile.USTAR_FORMAT else ""
    members = [
        (f"k{at:02d}{suffix}.{name}", bytes([at % 251]) * size)
        for at, sizes in enumerate(samples)
        for name, size in zip(("jpg", "cls", "txt"), sizes, strict=False)
    ]
    tar, chosen = tar_of(members, tar_format=kind), sorted({at % len(samples) for at in wanted})
    for beside in ({}, {"0.tar.keys": keys_beside(tar)}):
        with store_of({"0.tar": tar, **beside}) as store:
            keys = [f"k{at:02d}{suffix}" for at in chosen]
            chain = tdr.IterableWrapper([f"{store.url}0.tar"]).list_remote().select(keys=keys).shard_tar_reader()
            found = [(f"{one['__key__']}.{name}", one[name]) for one in chain for name in one if name[:2] != "__"]
            assert sorted(found) == sorted((name, data) for name, data in members if name.partition(".")[0] in keys)


def test_the_checksum_of_the_manifest_decides_about_a_file_of_keys() -> None:
    tar = pack_tar(SMALL)
    keys = keys_beside(tar)
    assert read_keys(tar, keys, num_samples=2, keys_crc32=zlib.crc32(keys)) == ["a", "b"]
    with pytest.raises(ManifestError, match="CRC-32"):
        read_keys(tar, keys, num_samples=2, keys_crc32=zlib.crc32(keys) ^ 1)
    with pytest.raises(ManifestError, match="has 2 samples"):
        read_keys(tar, None, num_samples=3)


@pytest.mark.parametrize(
    "other",
    [
        [("a.jpg", b"12"), ("a.cls", b"3"), ("c.jpg", b"4567"), ("c.cls", b"8")],
        [("a.jpg", b"12"), ("a.cls", b"3"), ("b.jpg", bytes(600)), ("b.cls", b"8")],
        [*SMALL, ("c.jpg", b"1"), ("c.cls", b"1")],
        SMALL[:2],
    ],
)
def test_a_file_of_keys_of_another_version_of_the_shard_is_an_error(other: list[tuple[str, bytes]]) -> None:
    """When it is planned, or when a sample is read that has another key or begins elsewhere."""
    keys = keys_beside(pack_tar(SMALL))
    assert read_keys(pack_tar(SMALL), keys) == ["a", "b"]
    with pytest.raises((ManifestError, ShardReadError), match=r"another version|another one|0\.tar"):
        read_keys(pack_tar(other), keys)


def test_of_shards_without_files_of_keys_the_headers_are_requested_and_one_warning_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tars = {f"{at}.tar": pack_tar([(f"{at}-{n}.bin", bytes(1 << 20)) for n in range(4)]) for at in range(5)}
    with store_of(tars) as store:
        [url] = tdr.IterableWrapper([store.url]).list_remote(pattern="*.tar").select(keys=["3-2"])
        assert ["manifest --overwrite" in said for said in caplog.messages] == [True]
        assert url.num_samples == 1
        assert sum(read.end - read.start for read in store.reads) < 5 * (256 << 10)


def test_a_query_of_an_url_stays_behind_the_name_of_the_file_beside_it() -> None:
    tar = pack_tar(SMALL)
    objects = {"/0.tar": tar, "/0.tar.keys": keys_beside(tar)}
    with scripted(lambda request: Response.of_object(request, objects[request.target.partition("?")[0]])) as server:
        url = tdr.RemoteUrl(f"{server.url}/0.tar?download=true", len(tar))
        assert len(list(tdr.IterableWrapper([url]).select(keys=["b"]))) == 1
        assert server.requests[0].target == "/0.tar.keys?download=true"
