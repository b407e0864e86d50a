"""Every pipe, and the ways in which pipes are combined, resume after each item, in one stream and in several."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.photographs import encoded, photograph
from tests.support.tables import FORMATS, file_bytes, numbered
from torchdata_remote import Resumable, accept_missing_end, mix, skip_with_warning
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

ROOT = "memory://resumed"
END_BYTES = 1024  # blocks of zeros at the end of an archive
LONG = "very-long-é/" * 12
LAZY = {"mp4"}
Pipe = Any


class Case(NamedTuple):
    make: Callable[[], Pipe]
    num_streams: tuple[int, ...] = (1,)
    same: Callable[[Any, Any], bool] | None = None


CASES: dict[str, Case] = {}


def case(name: str, make: Callable[[], Pipe], *num_streams: int, same: Any = None) -> None:
    assert name not in CASES
    CASES[name] = Case(make, num_streams or (1,), same)


# Archives


def named(shard: int, *sizes: int, folder: str = "") -> list[tuple[str, bytes]]:
    """Members of samples, two of each."""
    return [
        (f"{folder}{shard}-{at}.{extension}", bytes([shard, at]) * (size // 2))
        for at, size in enumerate(sizes)
        for extension in ("cls", "jpg")
    ]


def tar(*members: tuple[str, bytes]) -> bytes:
    return pack_tar(members)


def by_python(shard: int, tar_format: int) -> bytes:
    """Long names, with a directory and a link before each second member."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tar_format) as archive:
        for number, (name, value) in enumerate(named(shard, 5, 900, 0, folder=LONG)):
            if number % 4 == 2:
                for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
                    other = tarfile.TarInfo(f"{'é' * 60}/{number}/{kind!r}")
                    other.type, other.linkname = kind, "t" * 120
                    archive.addfile(other)
            member = tarfile.TarInfo(name)
            member.size = len(value)
            archive.addfile(member, io.BytesIO(value))
    return data.getvalue()


def zipped(shard: int, sizes: Sequence[int], method: int) -> bytes:
    """With directories between the members, and bytes before the first one."""
    data = io.BytesIO(bytes(100 * shard))
    data.seek(0, io.SEEK_END)
    with zipfile.ZipFile(data, "a", method) as archive:
        for number, size in enumerate(sizes):
            if number != 2:
                archive.writestr(f"{number}/", b"")
            archive.writestr(f"{number}.JPG", bytes(i * i % 251 for i in range(size)))
            archive.writestr(f"{number}.cls", b"%d" % number)
    return data.getvalue()


PLAIN = [tar(*named(shard, *sizes)) for shard, sizes in enumerate([(0, 10, 700), (3,), (1500, 2, 2, 2), (5, 5)])]
NESTED = [
    tar(("a.tar", PLAIN[0]), ("b.tar", PLAIN[1])),
    tar(("c.tar.gz", gzip.compress(PLAIN[2])), ("e/f.tar.xz", lzma.compress(PLAIN[1]))),
    tar(("g.tar", PLAIN[3])),
]
SKIP = {"on_bad_member": skip_with_warning}
TARS: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "pax": ([by_python(shard, tarfile.PAX_FORMAT) for shard in range(3)], {}),
    "gnu": ([by_python(shard, tarfile.GNU_FORMAT) for shard in range(3)], {}),
    "meta": ([tar(("__meta__", b"x"), *named(shard, 5, 9), ("a/__b__", b"y" * 600)) for shard in range(3)], {}),
    "bad members": (
        [
            tar(("README", b"x"), *named(n, 5, 9), (".backup", b"y" * 600), *named(n + 3, 2), ("LICENSE", b""))
            for n in range(3)
        ],
        SKIP,
    ),
    "bad members nested": (
        [tar(("README", b"x"), ("n.tar", tar(("a", b""), *named(0, 1, 2))), ("m.tar", PLAIN[3]))],
        {**SKIP, "nested": True},
    ),
    "gzip": ([gzip.compress(data) for data in PLAIN], {}),
    "xz, bzip2": ([lzma.compress(PLAIN[0]), PLAIN[3], bz2.compress(PLAIN[2])], {}),
    "nested": (NESTED, {"nested": True}),
    "nested in gzip": ([gzip.compress(data) for data in NESTED], {"nested": True}),
    "damaged": ([PLAIN[0], PLAIN[2][:4000], b"x" * 2000, PLAIN[3]], {"on_bad_shard": skip_with_warning}),
    "damaged nested": ([*NESTED, NESTED[0][:9000]], {"on_bad_shard": skip_with_warning, "nested": True}),
    "without end": ([data[:-END_BYTES] for data in PLAIN], {"on_bad_shard": accept_missing_end}),
    "small members": ([tar(*[(f"{i}.cls", b"%d" % i) for i in range(40)], *named(7, 3, 3)), PLAIN[1]], {}),
}
SIZES = [(0, 4000, 9), (5,), (70, 70, 1500, 2)]
ZIPS = {
    "stored": [zipped(shard, sizes, zipfile.ZIP_STORED) for shard, sizes in enumerate(SIZES)],
    "deflated": [zipped(shard, sizes, zipfile.ZIP_DEFLATED) for shard, sizes in enumerate(SIZES)],
}
SPOILED = bytearray(ZIPS["stored"][2])
SPOILED[SPOILED.index(b"2.JPG") + 100] ^= 1
ZIPS["damaged"] = [ZIPS["stored"][0], ZIPS["stored"][1][:50], bytes(SPOILED), ZIPS["stored"][0]]


@pytest.fixture(scope="module", autouse=True)
def _data() -> None:
    memory = fsspec.filesystem("memory")
    objects: dict[str, bytes] = {}
    for kind, (shards, _) in TARS.items():
        objects |= {f"/resumed/tar/{kind}/{number}.tar": data for number, data in enumerate(shards)}
    for kind, shards in ZIPS.items():
        objects |= {f"/resumed/zip/{kind}/{number}.zip": data for number, data in enumerate(shards)}
    for form in FORMATS:
        objects |= {f"/resumed/{form}/{at}": file_bytes(numbered(7, 7 * at), form, rows=3) for at in range(2)}
    objects |= {f"/resumed/loose/{name}/{at}.txt": b"x" * at for name in ("0", "1") for at in range(4)}
    memory.pipe(objects)
    write_small_shards(f"{ROOT}/shards/", num_shards=4, samples_per_shard=3)
    for name, counts, template in [("few", 9, "{shard}.tar"), ("zst", 7, "{shard}.tar.zst")]:
        with tdr.ShardWriter(f"{ROOT}/{name}/{template}", max_shard_samples=5, overwrite=True) as writer:
            for at in range(counts):
                writer.write({"__key__": f"{at}", "bin": bytes([at]) * (at * 400 % 1500), "cls": at})
    with tdr.ShardWriter(f"{ROOT}/lazy/{{shard}}.tar", max_shard_samples=3, overwrite=True) as writer:
        for at in range(7):
            video = random.Random(at).randbytes(100_000 if at % 3 else 1000)
            writer.write({"__key__": f"v/{at}", "cls": at, "mp4": video})
    with tdr.ShardWriter(f"{ROOT}/images/{{shard}}.tar", max_shard_samples=3, overwrite=True) as writer:
        for at in range(7):
            writer.write({"__key__": f"{at}", "jpg": encoded(photograph(30 + at, 24)), "cls": at})
    for name, extension in (("texts", "txt"), ("marks", "cls")):
        for ending in ("tar", "tar.gz"):
            template = f"{ROOT}/{name}-{ending}/{{shard}}.{ending}"
            with tdr.ShardWriter(template, max_shard_samples=3, overwrite=True) as writer:
                for at in range(8):
                    writer.write({"__key__": f"s/{at}", extension: f"{at}"})


# Sources


def counted(num_items: int = 9) -> Pipe:
    return IterableWrapper(range(num_items)).sharding_filter_rank()


def listed(folder: str, pattern: str | None = "*") -> Pipe:
    return IterableWrapper([f"{ROOT}/{folder}"]).list_remote(pattern=pattern)


def split(folder: str = "shards/index.json") -> Pipe:
    return listed(folder).shuffle_shards(seed=2).sharding_filter_rank()


def shards(interleave: int = 1) -> Pipe:
    return split().shard_tar_reader(interleave=interleave)


def keys(interleave: int = 1) -> Pipe:
    return shards(interleave).map(itemgetter("__key__"))


def letters(name: str, num_items: int) -> Pipe:
    items = IterableWrapper([f"{name}{number:02d}" for number in range(num_items)])
    return items.shuffle_shards(0).sharding_filter_rank()


# Functions


def same_arrays(one: Any, other: Any) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


def same(item: Any) -> Any:
    return item


def read(pair: tuple[str, Any]) -> tuple[str, bytes]:
    return pair[0], pair[1].read()


def whole(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else bytes(value) for name, value in sample.items()}


def image_bytes(item: tuple[Any, ...]) -> tuple[Any, ...]:
    return item[0], item[1].numpy().tobytes(), item[2]


def is_wanted(pair: tuple[str, Any]) -> bool:
    return not pair[0].endswith("/2.tar")


def is_not_empty(pair: tuple[str, bytes]) -> bool:
    return pair[1] != b""


def is_kept(key: str) -> bool:
    return key[-1] not in "13"


def lines_of(sample: dict[str, Any]) -> Iterator[str]:
    for number, _ in enumerate(sample["txt"].splitlines()):
        if number % 3 != 1:
            yield f"{sample['__key__']}:{number}"


def crops_of(sample: dict[str, Any], rng: np.random.Generator) -> list[tuple[str, float]]:
    return [(sample["__key__"], rng.random()) for _ in range(2)]


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> tuple[str, float]:
    return sample["__key__"], rng.random()


def fails_for_some(sample: dict[str, Any]) -> str:
    if sample["__key__"][-1] in "0459":
        raise ValueError(sample["__key__"])
    return str(sample["__key__"])


class OwnState(tdr.IterDataPipe[int]):
    """A user's pipe, whose state is the one dict that it changes."""

    def __init__(self) -> None:
        self.state = {"next": 0}

    def __iter__(self) -> Iterator[int]:
        while self.state["next"] < 6:
            self.state["next"] += 1
            yield self.state["next"]
        self.state["next"] = 0

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = dict(state)


# Readers
for kind, (_, options) in TARS.items():
    case(
        f"tar {kind}",
        lambda kind=kind, options=options: listed(f"tar/{kind}/").shard_tar_reader(interleave=3, **options),  # type: ignore[misc]
    )
for kind in ZIPS:
    case(
        f"zip {kind}",
        lambda kind=kind: listed(f"zip/{kind}/").shard_zip_reader(interleave=3, on_bad_shard=skip_with_warning),  # type: ignore[misc]
    )


def streams(kind: str = "tar/plain", interleave: int = 2) -> Pipe:
    return listed(f"{kind}/").async_prefetch(part_bytes=400, max_buffer_bytes=1200, interleave=interleave)


case("prefetched tar", lambda: streams(interleave=1).map(same).filter(is_wanted).shard_tar_reader())
case(
    "prefetched views",
    lambda: streams().shard_tar_reader(interleave=2, copy=False).decode_sample({"cls": bytes, "jpg": bytes}),
)
case("prefetched zip", lambda: streams("zip/deflated").shard_zip_reader(interleave=2))
case("shares of gzip", lambda: split("tar/gzip/").shard_tar_reader(interleave=2), 2)
case("parts of shards", lambda: split("few/index.json").shard_tar_reader(), 3, 5)
case("parts of shards in turn", lambda: split("few/index.json").async_prefetch(part_bytes=800).shard_tar_reader(), 3)
case("zstd", lambda: split("zst/index.json").shard_tar_reader(interleave=2), 2)
case("lazy parts", lambda: split("lazy/index.json").async_prefetch().shard_tar_reader(lazy=LAZY).map(whole), 5)
case("lazy nested", lambda: listed("tar/nested/").shard_tar_reader(lazy={"jpg"}, nested=True).map(whole))
for form in FORMATS:
    case(
        form,
        lambda form=form: listed(f"{form}/").table_reader(  # type: ignore[misc]
            columns=["n", "vector"], filter=~pc.field("n").isin([0, 3, 4, 5, 12]), interleave=2
        ),
        same=same_arrays,
    )
case(
    "row groups",
    lambda: (
        listed("parquet/")
        .list_row_groups()
        .shuffle_shards(seed=3)
        .sharding_filter_rank()
        .table_reader(columns=["n"])
        .shuffle_samples(buffer_size=3, seed=1)
        .batch(2)
    ),
    2,
)
case("files", lambda: listed("loose/").file_reader().label_from_path(pattern="/([01])/"))
case("files of a share", lambda: split("loose/").async_prefetch(part_bytes=2).filter(is_wanted).file_reader(), 3)
case("streams of a share", lambda: split("loose/").async_prefetch().map(read).filter(is_not_empty), 2)

# One item for one
case("tuples", lambda: shards().decode_sample().to_tuple("__key__", "cls;txt").batch(3), 2)
case("labels", lambda: shards(2).map(itemgetter("__key__")).map(lambda key: {"__key__": key}).label_from_path(), 1)
for num_threads in (0, 2):
    case(
        f"images, {num_threads}",
        lambda n=num_threads: (  # type: ignore[misc]
            split("images/index.json")
            .shard_tar_reader()
            .decode_image(16, seed=5, num_threads=n)
            .decode_sample(num_threads=n)
            .to_tuple("__key__", "jpg", "cls")
            .map(image_bytes)
        ),
        2,
    )
    case(
        f"skipped samples, {num_threads}",
        lambda n=num_threads: (  # type: ignore[misc]
            shards(2).parallel_map(fails_for_some, num_threads=n, on_bad_sample=skip_with_warning).batch(2)
        ),
        2,
    )
case("a user's pipe", lambda: OwnState().map(abs))

THREADED: dict[str, Callable[[int], Pipe]] = {
    "draws": lambda n: shards(3).parallel_map(drawn, seed=1, num_threads=n, max_ahead=3),
    "shuffle by bytes before": lambda n: (
        shards(2).shuffle_samples(buffer_size=9, max_buffer_bytes=1500).parallel_map(whole, num_threads=n)
    ),
    "several": lambda n: shards(3).decode_sample(num_threads=n).parallel_map(str, num_threads=n),
    "filter and batch behind": lambda n: keys(2).parallel_map(same, num_threads=n).filter(is_kept).batch(4),
    "flat_map before": lambda n: shards().repeat_epochs(2).flat_map(lines_of).parallel_map(same, num_threads=n),
}
for name, make in THREADED.items():
    case(f"threads: {name}", lambda make=make: make(2), 2)  # type: ignore[misc]

# Shares, counts and buffers
case("all to each", lambda: IterableWrapper(range(7)).sharding_filter_rank(split=False))
for mode in ("drop", "repeat"):
    case(
        f"equal {mode}",
        lambda mode=mode: shards(2).equalize_ranks(mode=mode).shuffle_samples(buffer_size=2, seed=2),  # type: ignore[misc]
        5,
    )
case("draws in repeats", lambda: shards().repeat_epochs(2).parallel_map(drawn, seed=3, num_threads=0), 1)
case("stream_shards", lambda: tdr.stream_shards(f"{ROOT}/shards", shuffle_buffer_bytes=1_000).to_tuple("__key__"), 3)
case("crops of a shuffle", lambda: shards().shuffle_samples(buffer_size=4, seed=1).flat_map(crops_of, seed=3), 2)

# Mixtures
CURRICULUM = {0: {"a": 1}, 6: {"a": 1, "b": 1}, 12: {"b": 3, "c": 1}}
for stop in ("first_exhausted", "all_exhausted", 24):

    def curriculum(stop: Any = stop) -> Pipe:
        sources = {"a": letters("a", 8).shuffle_samples(buffer_size=3), "b": letters("b", 8), "c": letters("c", 8)}
        return mix(sources, schedule=CURRICULUM, stop=stop)

    case(f"curriculum {stop}", curriculum, 3 if stop == "first_exhausted" else 1)

# Selections
CHOSEN = {f"{number % 10}/{number:06d}" for number in (0, 1, 4, 5, 8, 11)}
case("select", lambda: listed("shards/index.json").select(keys=CHOSEN).sharding_filter_rank().shard_tar_reader(), 5)
case(
    "select members",
    lambda: tdr.stream_shards(f"{ROOT}/shards/", select={"keys": CHOSEN, "members": ["cls"]}, interleave=3).batch(2),
    2,
)
SETS = {name: f"{ROOT}/{name}-tar/index.json" for name in ("texts", "marks")}
for align in ("order", "keys"):
    case(f"join by {align}", lambda align=align: tdr.join(SETS, align=align, shuffle="shards", interleave=2))  # type: ignore[misc]
    case(f"join by {align}, equal", lambda align=align: tdr.join(SETS, align=align, shuffle=False).equalize_ranks(), 3)  # type: ignore[misc]
case("join of gzip", lambda: tdr.join({name: f"{ROOT}/{name}-tar.gz/" for name in ("texts", "marks")}, align="order"))

RUNS = [(name, num_streams) for name, found in CASES.items() for num_streams in found.num_streams]
QUIET = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what is skipped on purpose


@QUIET
@pytest.mark.parametrize(("name", "num_streams"), RUNS)
def test_a_chain_resumes_after_each_item(name: str, num_streams: int) -> None:
    make, _, equal = CASES[name]
    compared = {} if equal is None else {"same": equal}
    assert_resumes_everywhere(make, num_streams=num_streams, **compared)


@QUIET
@settings(max_examples=15)
@given(
    run=st.sampled_from([run for run in RUNS if CASES[run[0]].same is None]),
    epoch=st.integers(0, 2),
    stops=st.tuples(st.integers(0, 12), st.integers(0, 6)),
)
def test_a_chain_that_is_stopped_twice_in_any_epoch_reads_what_one_without_stops_reads(
    run: tuple[str, int], epoch: int, stops: tuple[int, int]
) -> None:
    name, num_streams = run

    def chain(state: Any = None) -> Resumable:
        data = Resumable(CASES[name].make(), num_streams=num_streams)
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))
        return data

    without = chain()
    expected = [list(without) for _ in range(epoch + 2)]
    first = chain()
    assert [list(first) for _ in range(epoch)] == expected[:epoch]
    found = list(islice(first, stops[0]))
    second = chain(first.state_dict())
    found += islice(second, stops[1])
    third = chain(second.state_dict())
    assert [*found, *third] == expected[epoch]
    assert list(third) == expected[epoch + 1]


@pytest.mark.parametrize("name", THREADED)
def test_a_state_is_the_same_with_any_number_of_threads(name: str) -> None:
    plain, one, many = (Resumable(THREADED[name](num_threads)) for num_threads in (0, 1, 3))
    for _ in range(2):
        others = [iter(one), iter(many)]
        for item in plain:
            assert [next(other) for other in others] == [item, item]
            assert one.state_dict() == many.state_dict() == plain.state_dict()
        assert [next(other, None) for other in others] == [None, None]


def is_odd(item: Any) -> bool:
    return str(item)[-1] not in "13"


def letters_of(item: Any) -> list[str]:
    return [f"{item}/{number}" for number in range(sum(map(ord, str(item))) % 3)]


def tokens(item: Any) -> list[int]:
    return list(str(item).encode()[: sum(map(ord, str(item))) % 13])


def packed(pipe: Pipe, **options: Any) -> Pipe:
    return pipe.map(tokens).pack(16, **options).map(lambda row: str(row["input_ids"].tolist()))


STAGES: dict[str, Callable[[Pipe], Pipe]] = {
    "shuffle": lambda pipe: pipe.shuffle_samples(buffer_size=4, seed=1),
    "shuffle by bytes": lambda pipe: pipe.shuffle_samples(buffer_size=9, max_buffer_bytes=700, seed=2),
    "take": lambda pipe: pipe.take(9),
    "skip": lambda pipe: pipe.skip(3),
    "repeat": lambda pipe: pipe.repeat_epochs(2),
    "endless": lambda pipe: pipe.repeat_epochs().take(20),
    "threads": lambda pipe: pipe.parallel_map(str, num_threads=2, max_ahead=3),
    "filter": lambda pipe: pipe.filter(is_odd),
    "batch": lambda pipe: pipe.batch(2).map(str),
    "flat_map": lambda pipe: pipe.flat_map(letters_of),
    "bucket": lambda pipe: pipe.bucket(2, length=lambda item: len(str(item)) % 3, max_wait=5).map(str),
    "bucket by tokens": lambda pipe: pipe.bucket(length=len, max_tokens=30, boundaries=[9], max_wait=5).flat_map(same),
    "pack": lambda pipe: packed(pipe, separator=7, last="short"),
    "pack whole": lambda pipe: packed(pipe, split=False, max_wait=4),
    "mix": lambda pipe: mix({"a": (pipe, 2), "b": (letters("b", 5), 1)}, seed=3, stop="all_exhausted"),
    "mix to a number": lambda pipe: mix({"a": (pipe, 2), "b": (letters("b", 5), 1)}, seed=4, stop=14),
}


@settings(max_examples=30)
@given(stages=st.lists(st.sampled_from(sorted(STAGES)), min_size=1, max_size=3), num_streams=st.integers(1, 3))
def test_pipes_in_any_order_resume_after_each_item(stages: list[str], num_streams: int) -> None:
    def chain() -> Pipe:
        pipe = keys(2)
        for stage in stages:
            pipe = STAGES[stage](pipe)
        return pipe

    assume(any(True for _ in chain()))
    assert_resumes_everywhere(chain, num_streams=num_streams)


@pytest.mark.parametrize(
    "make", [lambda pipe: pipe, lambda pipe: pipe.take(9), lambda pipe: pipe.parallel_map(abs, num_threads=2)]
)
def test_a_state_does_not_change_while_its_chain_goes_on(make: Callable[[Any], Any]) -> None:
    data, other = Resumable(make(OwnState())), Resumable(make(OwnState()))
    items = iter(data)
    assert [next(items), next(items)] == [1, 2]
    state = data.state_dict()
    before = json.dumps(state)
    assert next(items) == 3
    assert json.dumps(state) == before
    other.load_state_dict(state)
    assert next(iter(other)) == 3
