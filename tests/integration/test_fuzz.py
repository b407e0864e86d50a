"""Fuzz the archive readers: structured archives by hypothesis, and raw bytes guided by coverage."""

from __future__ import annotations

import base64
import bz2
import gzip
import importlib.util
import io
import lzma
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support import fuzz_archives
from tests.support.archive_bytes import in_parts, make_header, octal_size, pax_line
from tests.support.tar_members import read_members
from torchdata_remote import ShardTarReader
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.tar import TarOptions, read_member_batches
from torchdata_remote.formats.tar import fast_path as plain
from torchdata_remote.formats.tar import vector_scan as scan

URL = "s3://b/t-000.tar"
PROGRAM = Path(fuzz_archives.__file__)
Outcome = tuple[list[tuple[str, bytes]], str | None]

NAMES = st.one_of(
    st.from_regex(rb"[ab]/?[ab]\.(x|y)", fullmatch=True),
    st.sampled_from(
        [b"a.x", b"../a.x", b"/a.x", b"./a.x", b"a", b".x", b"__m__", b"a\0b.x", b"a\n.x", b"\xff.x", b"d/"]
    ),
    st.binary(max_size=100),
)
SIZES = st.sampled_from([0, 1, 3, 511, 512, 513, 1024])
FALSE_SIZES = st.sampled_from([b"-0000000003\0", b"\xff" * 12, b"\x80" + b"\x7f" * 11, bytes(12), b"77777777777 "])
KINDS = st.sampled_from(list(b"00000000000\x00\x007123456xgLKSVMDN\x9f"))
RECORDS = st.one_of(
    st.dictionaries(
        st.sampled_from(["path", "size", "linkpath", "GNU.sparse.map", "comment", "mtime"]),
        st.sampled_from(["", "b.x", "3", "-3", "0", str(1 << 50), "../b.x", "é" * 99, "a\0b.x"]),
        max_size=3,
    ).map(lambda fields: b"".join(pax_line(key, value) for key, value in fields.items())),
    st.binary(max_size=40),
)


@st.composite
def members(draw: st.DrawFn) -> bytes:
    """A header with any fields and a checksum that fits, and data, which seldom are not as long as it says."""
    kind = draw(KINDS)
    data = draw(RECORDS) if kind in b"xgLK" else b"x" * draw(SIZES)
    size = octal_size(len(data)) if draw(st.integers(0, 9)) else draw(FALSE_SIZES)
    name, magic = draw(NAMES), draw(st.sampled_from([b"ustar\x0000", b"ustar  \0", bytes(8)]))
    header = make_header(name, size, bytes([kind]), magic, draw(st.sampled_from([b"", b"", b"p", b"/"])))
    return header + data + bytes(-len(data) % 512 if draw(st.integers(0, 30)) else 0)


ENDS = st.sampled_from([bytes(1024)] * 6 + [b"", bytes(512), bytes(10_240), bytes(1024) + b"x"])
ARCHIVES = st.builds(lambda pieces, end: b"".join(pieces) + end, st.lists(members(), max_size=12), ENDS)
COMPRESSIONS = st.sampled_from([gzip.compress, bz2.compress, lzma.compress, lambda data: data])


def _members(parts: Sequence[bytes | memoryview], url: str = URL) -> Outcome:
    got: list[tuple[str, bytes]] = []
    try:
        got.extend(read_members(parts, url=url, options=TarOptions()))
    except ShardReadError as error:
        return got, str(error)
    return got, None


def _runs(data: bytes) -> Outcome:
    got: list[tuple[str, bytes]] = []
    try:
        for names, values in read_member_batches([data], url=URL, options=TarOptions(copy=False)):
            got.extend(zip(names, map(bytes, values), strict=True))
    except ShardReadError as error:
        return got, str(error)
    return got, None


@given(archive=ARCHIVES, cuts=st.lists(st.integers(0, 12_000), max_size=9))
@settings(max_examples=300)
def test_members_do_not_depend_on_the_cuts_between_parts(archive: bytes, cuts: list[int]) -> None:
    """For any archive: the same members and the same error from one part, from many, and as slices."""
    expected = _members([archive])
    assert _members(in_parts(archive, cuts)) == expected
    assert _runs(archive) == expected


@given(archive=ARCHIVES)
@settings(max_examples=300)
def test_vectorised_scan_equals_the_parser_header_by_header(archive: bytes) -> None:
    """For any archive: the same members and the same error."""
    expected = _members(in_parts(archive, range(0, len(archive), 512)))  # parts of one block are not scanned
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_STEPS", 1), ("_MIN_SCAN_BYTES", 512), ("_STEPS_AFTER_POOR_SCAN", 0)):
            patch.setattr(plain, name, value)
        patch.setattr(scan, "_MIN_CHAIN", 1)
        assert _members([archive]) == expected
        assert _runs(archive) == expected


@given(
    archives=st.lists(ARCHIVES, min_size=1, max_size=3), inner=COMPRESSIONS, outer=COMPRESSIONS, nested=st.booleans()
)
@settings(max_examples=200)
def test_any_archive_is_samples_or_an_error(archives: list[bytes], inner: Any, outer: Any, nested: bool) -> None:
    """Plain or compressed, nested or not: samples of str and bytes. With an error policy no exception is raised."""
    data = archives[0]
    if nested:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for index, one in enumerate(map(inner, archives)):
                info = tarfile.TarInfo(f"{index}.tar")
                info.size = len(one)
                archive.addfile(info, io.BytesIO(one))
        data = packed.getvalue()
    errors: list[ShardReadError] = []
    source = IterableWrapper([(URL, io.BytesIO(outer(data)))], deepcopy=False)
    pipe = ShardTarReader(source, nested=nested, on_bad_shard=errors.append)
    for sample in pipe:
        assert all(isinstance(value, str if key.startswith("__") else bytes) for key, value in sample.items()), sample
    assert len(errors) <= 1
    assert list(pipe.skipped.shards) == [URL] * len(errors)


# Led by coverage


def _fuzz(folder: Path, *arguments: str, timeout_s: float) -> None:
    """Run the fuzzer; the error contains the input that broke a reader."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed")
    # Linux counts the memory of the process that starts a program as the program's own peak: a shell's is small.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    command = [*shell, sys.executable, str(PROGRAM), f"--folder={folder}", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, cwd=PROGRAM.parents[1], errors="replace"
    )
    reported = re.search(r"INPUT (\S*)", done.stderr)
    crashes = [base64.b64encode(crash.read_bytes()).decode() for crash in folder.glob("*-*")]
    advice = f"python tests/support/fuzz_archives.py --input {reported[1] if reported else (crashes or [''])[0]}"
    assert done.returncode == 0, f"{done.stderr[-3000:]}\nAgain: {advice}"
    assert re.search(r"Done \d+ runs", done.stderr), done.stderr[-3000:]


def test_coverage_guided_inputs_are_members_or_an_error(tmp_path: Path) -> None:
    """3,000 inputs: each gives members or a ``RemoteDataError`` within a second and 64 MiB of memory."""
    _fuzz(tmp_path, "--runs=3000", "--seed=1", timeout_s=200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_coverage_guided_inputs_are_members_or_an_error(tmp_path: Path) -> None:
    """The same promise, with other inputs."""
    _fuzz(tmp_path, "--runs=1000000", "--seed=2", timeout_s=3500)


def test_seeds_of_the_fuzzer_are_valid_archives() -> None:
    """Otherwise all inputs would fail at the first check."""
    readers = fuzz_archives.Readers()
    seeds = list(fuzz_archives.seeds())
    assert {seed[0] for seed in seeds} == set(range(5))
    assert [readers.read(seed, exactly=True) for seed in seeds] == [None] * len(seeds)
