"""Damaged and malicious archives: no sample is missing or wrong silently, and time and memory are bounded."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import struct
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.archive_bytes import make_header, make_member, octal_size, pack_tar, pax_line
from tests.support.fuzz_archives import within_limits
from tests.support.waiting import new_threads
from torchdata_remote import RetryPolicy, ShardTarReader, ShardWriter, ShardZipReader
from torchdata_remote.errors import ShardCorruptError, ShardReadError
from torchdata_remote.formats.error_policy import accept_missing_end, skip_with_warning
from torchdata_remote.formats.tar import END_OF_ARCHIVE

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

URL = "s3://b/t-000.tar"
Reader = type[ShardTarReader] | type[ShardZipReader]
Samples = list[dict[str, Any]]
MEMBERS = [
    (f"{'p' * 120 if i == 3 else 'd'}/{'é' * (i == 7)}{i:02d}.{ending}", Random(i).randbytes(37 * i + len(ending)))
    for i in range(10)
    for ending in ("cls", "jpeg")
]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
}


def _zip(members: Iterable[tuple[str, bytes]] = MEMBERS) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for index, (name, data) in enumerate(members):
            archive.writestr(zipfile.ZipInfo(name), data, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[index % 2])
    return stream.getvalue()


def _pipe(data: bytes, reader: Reader = ShardTarReader, **options: Any) -> Any:
    return reader(IterableWrapper([(URL, io.BytesIO(data))], deepcopy=False), **options)


def _read(pipe: Iterable[dict[str, Any]]) -> tuple[Samples, ShardReadError | None]:
    """Read the samples, and the error that ended the pass."""
    got: Samples = []
    try:
        for sample in pipe:
            got.append(sample)
    except ShardReadError as error:
        return got, error
    return got, None


SOUND = pack_tar(MEMBERS)
TRUTH, _ = _read(_pipe(SOUND))
HEADERS = [at for at in range(0, len(SOUND), 512) if SOUND[at + 257 : at + 262] == b"ustar"]


def _assert_right_or_error(data: bytes, what: str, **options: Any) -> bool:
    """Check that all samples were read or an error was raised after correct ones; return whether there was an error."""
    got, error = _read(_pipe(data, **options))
    assert got == TRUTH[: len(got)], what
    assert error is not None or len(got) == len(TRUTH), what
    return error is not None


def _error(data: bytes, reader: Reader = ShardTarReader, **options: Any) -> str:
    """Return the message of the error, which must be raised within the limits and leave no thread."""
    before = set(threading.enumerate())
    with within_limits():
        _, error = _read(_pipe(data, reader, **options))
    assert error is not None
    message = str(error)
    del error
    gc.collect()
    assert URL in message
    for thread in new_threads(before):
        thread.join(2.0)
        assert not thread.is_alive()
    return message


def _flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


# Damage


def test_undamaged_archives_yield_the_samples_that_were_written() -> None:
    """The reference of the other tests: ten samples, in tar and in zip."""
    expected = [
        {"__key__": name.partition(".")[0], "cls": cls, "jpeg": jpeg, "__url__": URL}
        for (name, cls), (_, jpeg) in zip(MEMBERS[::2], MEMBERS[1::2], strict=True)
    ]
    assert expected == TRUTH == list(_pipe(_zip(), ShardZipReader))
    assert len(HEADERS) > len(MEMBERS), "extended headers among them"


def test_flipped_bits_in_headers_do_not_shorten_a_shard() -> None:
    """1,000 bits; Python's tarfile treats most of them as the end of the archive."""
    random, data, num_errors = Random(1), SOUND, 0
    for _ in range(1000):
        at, bit = random.choice(HEADERS) + random.randrange(512), random.randrange(8)
        num_errors += _assert_right_or_error(_flipped(data, at, bit), f"bit {bit} of byte {at}")
    assert num_errors > 950, "only a blank for a zero in the checksum field is harmless"


@pytest.mark.parametrize("name", [None, *COMPRESS])
def test_truncation_is_an_error_after_correct_samples(name: str | None) -> None:
    """300 random ones of a plain shard and of each compression."""
    data, random = COMPRESS[name](SOUND) if name else SOUND, Random(2)
    for _ in range(300):
        end = random.randrange(len(data))
        assert _assert_right_or_error(data[:end], f"cut at byte {end}"), end


def test_truncation_yields_complete_samples_and_is_counted() -> None:
    """With a warning. Cut between two members, it can be accepted. Cuts at each border of blocks, and between."""
    borders = {at + offset for at in range(0, len(SOUND), 512) for offset in (0, 1, 100, 511)}
    _check_truncations(sorted({*borders, len(SOUND) - 1}))


@pytest.mark.slow
def test_truncation_at_every_byte_yields_complete_samples_and_is_counted() -> None:
    """The same promise for each byte."""
    _check_truncations(range(len(SOUND)))


def _check_truncations(ends: Iterable[int]) -> None:
    data, accepted = SOUND, []
    for end in ends:
        pipe = _pipe(data[:end], on_bad_shard=skip_with_warning)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got, error = _read(pipe)
        assert (got, error) == (TRUTH[: len(got)], None), end
        assert list(pipe.skipped.shards) == [URL], end
        assert len(caught) == 1, end
        got, error = _read(_pipe(data[:end], on_bad_shard=accept_missing_end))
        if error is None:  # after a member; the missing ones cannot be detected
            accepted.append(end)
            assert got == TRUTH if end == len(data) - 1024 else got[:-1] == TRUTH[: len(got) - 1], end
    assert len(accepted) == len(MEMBERS)
    assert accepted[-1] == len(data) - 1024
    assert set(accepted[:-1]) <= set(HEADERS)


def _mutated_shards(num_shards: int, seed: int) -> Iterator[tuple[bytes, str]]:
    """A flipped bit, a cut, a swap of blocks, or several.

    In a plain tar no checksum protects the data: only headers are flipped there, and swapped only with data.
    """
    random, plain = Random(seed), SOUND
    data_blocks = sorted(set(range(0, len(plain), 512)) - set(HEADERS))
    for index in range(num_shards):
        name = random.choice([None, None, *COMPRESS])
        data = COMPRESS[name](plain) if name else plain
        steps = []
        for kind in random.sample(["flip", "cut", "swap"], random.choice([1, 1, 1, 2, 3])):
            if kind == "flip":
                at = random.choice(HEADERS) + random.randrange(512) if name is None else random.randrange(len(data))
                data = _flipped(data, at, random.randrange(8)) if at < len(data) else data
            elif kind == "cut":
                at = random.randrange(1, len(data))
                data = data[:at]
            else:
                length = 512 if name is None else random.randrange(1, 64)
                at = random.choice(HEADERS) if name is None else random.randrange(len(data))
                other = random.choice(
                    [block for block in data_blocks if block > at] if name is None else range(len(data))
                )
                first, second = sorted([at, other])
                if first + length <= second and second + length <= len(data):
                    a, b = data[first : first + length], data[second : second + length]
                    data = data[:first] + b + data[first + length : second] + a + data[second + length :]
            steps.append(f"{kind} at {at:,}")
        yield data, f"shard {index} of seed {seed}: {name}, {steps}"


def _check_mutated_shards(num_shards: int) -> None:
    num_errors = 0
    for data, what in _mutated_shards(num_shards, seed=num_shards):
        got, error = _read(_pipe(data))
        # A checksum follows the data: wrong samples of a compressed shard may be yielded before the error.
        assert ": None, " not in what or got == TRUTH[: len(got)], what
        assert error is not None or got == TRUTH, what
        num_errors += error is not None
    assert num_errors > num_shards * 0.9


def test_mutated_shards_are_correct_or_errors() -> None:
    """500 plain and compressed ones with flips, cuts and swaps: all samples, or an error."""
    _check_mutated_shards(500)


@pytest.mark.slow
def test_ten_thousand_mutated_shards_are_correct_or_errors() -> None:
    """The same promise, with more mutations."""
    _check_mutated_shards(10_000)


def _check_flips_beside_a_manifest(folder: Path, num_flips: int) -> None:
    with ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=4) as writer:
        for sample in TRUTH:
            writer.write({key: value for key, value in sample.items() if key != "__url__"})
    retry, random = RetryPolicy(first_wait_s=0), Random(num_flips)

    def read() -> tuple[Samples, ShardReadError | None]:
        urls = IterableWrapper([f"{folder}/index.json"]).list_remote()
        return _read(urls.async_prefetch(retry=retry).shard_tar_reader())

    truth, _ = read()
    assert len(truth) == len(TRUTH)
    for _ in range(num_flips):
        shard = folder / f"{random.randrange(3)}.tar"
        data = shard.read_bytes()
        at, bit = random.randrange(len(data)), random.randrange(8)
        shard.write_bytes(_flipped(data, at, bit))
        got, error = read()
        shard.write_bytes(data)
        assert isinstance(error, ShardCorruptError), f"bit {bit} of byte {at} of {shard.name}: {error}"
        assert got == truth[: len(got)], f"bit {bit} of byte {at} of {shard.name}"


def test_manifest_detects_every_flipped_bit(tmp_path: Path) -> None:
    """200 bits anywhere in the shards, including data and padding."""
    _check_flips_beside_a_manifest(tmp_path, 200)


@pytest.mark.slow
def test_manifest_detects_ten_thousand_flipped_bits(tmp_path: Path) -> None:
    """The same promise, with more bits."""
    _check_flips_beside_a_manifest(tmp_path, 10_000)


# Malice


def _header(name: bytes = b"a.x", size: int | bytes = 0, kind: bytes = b"0") -> bytes:
    if isinstance(size, int):
        size = octal_size(size) if size < 1 << 33 else b"\x80" + size.to_bytes(11, "big")
    return make_header(name, size, kind)


def _pax(key: str, value: str) -> bytes:
    return make_member(b"pax", pax_line(key, value), b"x")


ONE, END = make_member(b"a.x", b"one"), END_OF_ARCHIVE
HOSTILE: dict[str, Callable[[], bytes]] = {
    "unknown type of 2**50 bytes": lambda: _header(size=1 << 50, kind=b"\x9f") + bytes(2048),
    "2**50 bytes": lambda: _header(size=1 << 50) + bytes(2048),
    "2**50 bytes in pax": lambda: ONE + _pax("size", str(1 << 50)) + ONE + END,
    "4 GiB that do not come": lambda: _header(size=(4 << 30) - 1) + bytes(2048),
    "negative size": lambda: ONE + _header(size=b"\xff" * 12) + bytes(2048),
    "negative octal size": lambda: ONE + _header(size=b"-0000001000\0") + bytes(2048),
    "negative size in pax": lambda: ONE + _pax("size", "-1024") + ONE + END,
    "400 MB of pax": lambda: gzip.compress(_header(size=400 << 20, kind=b"x") + bytes(400 << 20), 1),
    "5,000 pax headers": lambda: _pax("path", "b.x") * 5000 + ONE + END,
    "5,000 long names": lambda: make_member(b"L", b"b.x\0", b"L") * 5000 + ONE + END,
    "1,000 empty pax headers": lambda: _header(kind=b"x") * 1000 + ONE + END,
    "sparse": lambda: ONE + make_member(b"s.x", b"one", b"S") + END,
    "sparse in pax": lambda: _pax("GNU.sparse.realsize", str(1 << 40)) + ONE + END,
    "sparse map in pax": lambda: _pax("GNU.sparse.map", "0,1," * 2000) + ONE + END,
    "..": lambda: make_member(b"../a.x", b"one") + END,
    ".. inside": lambda: ONE + make_member(b"d/../../a.x", b"one") + END,
    ".. in pax": lambda: _pax("path", "d/../a.x") + ONE + END,
    "absolute": lambda: make_member(b"/etc/a.x", b"one") + END,
    "absolute long name": lambda: make_member(b"L", b"/etc/a.x\0", b"L") + ONE + END,
    "NUL in pax": lambda: _pax("path", "b\0.x") + ONE + END,
    "NUL in a long name": lambda: make_member(b"L", b"b.x\0/../c.x", b"L") + ONE + END,
    "a path of 500,000 folders": lambda: _pax("path", "a/" * 500_000 + "b.tar") + ONE + END,
    "4,000 long keys": lambda: gzip.compress(
        b"".join(_pax("path", f"{i}" + "x" * 4000 + "\U0001f600.x") + ONE for i in range(4000)), 1
    ),
    "the sample's key": lambda: make_member(b"a.__key__", b"other") + ONE + END,
    "the sample's URL": lambda: make_member(b"a.__url__", b"other") + ONE + END,
    "a bomb after a member": lambda: gzip.compress(ONE + _header(b"b.x", 300 << 20) + bytes(300 << 20) + END, 1),
    "zeros after the end": lambda: gzip.compress(ONE + END + bytes(300 << 20), 1),
    "a MiB of empty frames": lambda: struct.pack("<2L", 0x184D2A50, 0) * (1 << 17) + b"x",
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tars_are_errors_within_time_and_memory(case: str, nested: bool) -> None:
    """A second of CPU time and 64 MiB; as the shard, and as an archive within it."""
    data = HOSTILE[case]()
    _error(make_member(b"a.tar", data) + END if nested else data, nested=nested)


def test_errors_shorten_long_names() -> None:
    """The message of a name of 1 MiB is short, since it is stored in ``skipped`` and logged."""
    assert len(_error(_pax("path", "../" + "\x01" * 1_000_000) + ONE + END)) < 10_000


def test_repeated_key_in_nested_archives_is_an_error() -> None:
    """Prefix and key of two archives give the same key: ``a`` with ``b/c``, and ``a/b`` with ``c``."""
    inner, other = pack_tar([("b/c.x", b"1")]), pack_tar([("c.x", b"2")])
    _error(pack_tar([("a.tar", inner), ("a/b.tar", other)]), nested=True)


@pytest.mark.parametrize("name", COMPRESS)
def test_decompression_thread_ends_while_the_error_is_referenced(name: str) -> None:
    """The damaged header is early in a large compressed shard."""
    data = pack_tar((f"{i}.x", Random(i).randbytes(1 << 18)) for i in range(12))
    before = set(threading.enumerate())
    with pytest.raises(ShardReadError) as caught:
        list(_pipe(COMPRESS[name](_flipped(data, 512 + (1 << 18), 0))))
    for thread in new_threads(before):
        thread.join(2.0)
        assert not thread.is_alive(), f"{thread.name} while {caught.typename} is referenced"


def _patched_zip(signature: bytes, offset: int, form: str, *values: int) -> bytes:
    changed = bytearray(_zip())
    struct.pack_into("<" + form, changed, changed.find(signature) + offset, *values)
    return bytes(changed)


HOSTILE_ZIPS: dict[str, Callable[[], bytes]] = {
    "..": lambda: _zip([("a/../b.x", b"1")]),
    "absolute": lambda: _zip([("/b.x", b"1")]),
    "NUL": lambda: _zip([("a.b.x", b"1")]).replace(b"a.b.x", b"a\0b.x"),
    "the sample's key": lambda: _zip([("a.__key__", b"1")]),
    "a bomb": lambda: _zip([("a.x", b""), ("b.x", bytes(300 << 20))]),
    "4 GiB claimed": lambda: _patched_zip(b"PK\1\2", 20, "2L", 0xFFFFFFFE, 0xFFFFFFFE),
    "directory of 4 GiB": lambda: _patched_zip(b"PK\5\6", 12, "2L", 0xFFFFFFFE, 0),
    "60,000 members claimed": lambda: _patched_zip(b"PK\5\6", 8, "2H", 60_000, 60_000),
    "end records only": lambda: b"PK\5\6" * 20_000,
    "members that overlap": lambda: _patched_zip(b"PK\1\2", 42, "L", 1),
}


@pytest.mark.parametrize("case", HOSTILE_ZIPS)
def test_hostile_zips_are_errors_within_time_and_memory(case: str) -> None:
    """A second of CPU time and 64 MiB."""
    _error(HOSTILE_ZIPS[case](), ShardZipReader)


def test_damaged_zips_are_correct_or_errors() -> None:
    """500 flips and 500 cuts anywhere: CRC-32 protects the data, the directory the names."""
    random, data = Random(3), _zip()
    for _ in range(500):
        at, bit, end = random.randrange(len(data)), random.randrange(8), random.randrange(len(data))
        got, error = _read(_pipe(_flipped(data, at, bit), ShardZipReader))
        assert got == TRUTH[: len(got)], f"bit {bit} of byte {at}"
        assert error is not None or got == TRUTH, f"bit {bit} of byte {at}"
        assert _read(_pipe(data[:end], ShardZipReader))[1] is not None, f"cut at byte {end}"
