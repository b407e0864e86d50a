"""Writers and readers of shards share their limits."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import ShardTarReader, ShardWriter, WriteShards, shard_dataset
from torchdata_remote.errors import ShardReadError, ShardWriteError
from torchdata_remote.formats.limits import FREE_BYTES, MAX_NAME_LENGTH
from torchdata_remote.formats.tar import END_OF_ARCHIVE, pack_header, padding

ENDINGS = st.sampled_from([".tar", ".tar.gz", ".tar.zst"])
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=6)
PIECES = (
    ANY_TEXT
    | st.text("aZ0./_- \t\n\\:\0", max_size=6)
    | st.sampled_from(
        [
            *(
                "..",
                "./",
                "/",
                "//",
                ".",
                " ",
                "__meta__",
                "__",
                "__url__",
                "__key__",
                "a.tar",
                "a.tar.gz",
                "index.json",
            ),
            *("BZh91AY&SY", "BZh5\x17rE8P", "PaxHeaders/x", "././@LongLink", "ustar", "é", "e\u0301", "\u0130", "ß"),
            *("\U0001f426", "\udcff", "\ud83d\udc26", "\ufeff", "x" * 98, "é" * 60, "d/" * 70),
            *("x" * 4_000, "é" * 4_090, "d/" * 2_040),
        ]
    )
)
KEYS = st.lists(PIECES, min_size=1, max_size=3).map("".join)
EXTENSIONS = st.sampled_from(["jpg", "JPG", "seg.png", "tar", "__x", "x__", "", "a/b", "\u0130", "x" * 95]) | ANY_TEXT
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {**members, "__key__": key},
        KEYS,
        st.dictionaries(EXTENSIONS, st.binary(max_size=600), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@contextlib.contextmanager
def _new_folder() -> Iterator[str]:
    folder = f"memory://{uuid.uuid4().hex}"
    filesystem = fsspec.filesystem("memory")
    filesystem.makedirs(folder)
    yield folder
    filesystem.rm(folder, recursive=True)


def _files(folder: str) -> list[str]:
    return [str(name) for name in fsspec.filesystem("memory").find(folder)]


def _members(sample: dict[str, Any]) -> dict[str, Any]:
    """The key and all members are preserved; other names of this package are not written."""
    return {name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")}


@settings(max_examples=300)
@given(samples=SAMPLES, ending=ENDINGS)
@example(samples=[{"__key__": "x" * 5_000, "txt": b""}], ending=".tar")
@example(samples=[{"__key__": "x" * (MAX_NAME_LENGTH - 4), "txt": b""}], ending=".tar")
@example(samples=[{"__key__": "x" * (MAX_NAME_LENGTH - 3), "txt": b""}], ending=".tar.gz")
@example(samples=[{"__key__": "x", "y" * MAX_NAME_LENGTH: b""}], ending=".tar")
@example(samples=[{"__key__": "\U0001f426" * (MAX_NAME_LENGTH - 4), "txt": b""}], ending=".tar.zst")
@example(samples=[{"__key__": "BZh91AY&SY", "txt": b"a"}], ending=".tar")
def test_what_the_writer_accepts_the_reader_returns(samples: list[dict[str, Any]], ending: str) -> None:
    """Equal samples in equal order; what is refused leaves no trace, and the error shows the key."""
    with _new_folder() as folder:
        writer = ShardWriter(f"{folder}/{{shard}}{ending}", max_shard_samples=3)
        accepted = []
        for sample in samples:
            try:
                writer.write(sample)
            except ShardWriteError as error:
                assert f"{sample['__key__']!r:.100}" in str(error)  # noqa: PT017  # others are accepted
            else:
                accepted.append(_members(sample))
        if not accepted:
            with pytest.raises(ShardWriteError, match="there are no samples to write"):
                writer.close()
            assert _files(folder) == []
            return
        writer.close()
        read = list(ShardTarReader(IterableWrapper([shard.url for shard in writer.shards])))
    assert [_members(sample) for sample in read] == accepted


@pytest.mark.parametrize("key", ["x" * 5_000, "é" * 5_000, "folder/" * 700 + "x"])
def test_a_name_that_is_too_long_is_refused_with_its_limit(key: str) -> None:
    """Before anything is written, by writer and pipe."""
    sample = {"__key__": key, "txt": b"small"}
    with _new_folder() as folder:
        with (
            pytest.raises(ShardWriteError, match=r"'(x|é|folder).* characters.*4,096"),
            ShardWriter(f"{folder}/{{shard}}.tar") as writer,
        ):
            writer.write(sample)
        with pytest.raises(ShardWriteError, match="4,096"):
            list(WriteShards(IterableWrapper([sample]), f"{folder}/{{shard}}.tar"))
        assert _files(folder) == []


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
@pytest.mark.parametrize("num_bytes", [10_000, 10_001])
def test_a_member_that_is_too_large_is_refused_with_its_limit(num_bytes: int, ending: str) -> None:
    """The same number for writer and reader: what one accepts the other returns."""
    sample = {"__key__": "a", "bin": bytes(num_bytes)}
    with _new_folder() as folder:
        writer = ShardWriter(f"{folder}/{{shard}}{ending}", max_member_bytes=10_000)
        if num_bytes > 10_000:
            with pytest.raises(ShardWriteError, match=r"'a'.*'bin'.*10,001 bytes.*max_member_bytes=10,000"):
                writer.write(sample)
            writer.abort()
            assert _files(folder) == []
            return
        writer.write(sample)
        (shard,) = writer.close()
        (read,) = ShardTarReader(IterableWrapper([shard.url]), max_member_bytes=10_000)
        assert len(read["bin"]) == num_bytes


@pytest.mark.parametrize("piece_bytes", [1_000, 300_000, 5 << 20])
@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_what_compresses_extremely_well_is_read_back(ending: str, piece_bytes: int) -> None:
    """Zeros shrink to a thousandth or less, which readers of strange archives take for a bomb."""
    count = 4 * FREE_BYTES // piece_bytes
    with _new_folder() as folder:
        with ShardWriter(f"{folder}/{{shard}}{ending}") as writer:
            for number in range(count):
                writer.write({"__key__": f"{number:06d}", "bin": bytes(piece_bytes)})
        (shard,) = writer.shards
        read = ShardTarReader(IterableWrapper([shard.url]))
        assert sum(len(sample["bin"]) == piece_bytes for sample in read) == count
        assert shard.num_bytes < 4 * FREE_BYTES // 25, "nearly all of it is still compressed"


@pytest.mark.parametrize(
    ("name", "says"),
    [("caf\udce9.jpg", "surrogate"), ("n" * MAX_NAME_LENGTH, None), ("n" * (MAX_NAME_LENGTH - 4) + ".jpg", None)],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_source_whose_names_cannot_be_written_is_refused_first(name: str, says: str | None, overwrite: bool) -> None:
    """Names of another encoding, and those that labels or an archive's name make too long."""
    with _new_folder() as folder:
        with ShardWriter(f"{folder}/to/{{shard}}.tar") as writer:
            writer.write({"__key__": "old", "txt": b""})
        before = _files(f"{folder}/to")
        names = [*(f"{number}.jpg" for number in range(5)), name]
        archive = b"".join(pack_header(one, 7) + b"picture" + bytes(padding(7)) for one in names) + END_OF_ARCHIVE
        fsspec.filesystem("memory").pipe({f"{folder}/from/a.tar": archive, f"{folder}/from/b.tar": archive})
        with pytest.raises((ShardWriteError, ShardReadError), match=says or r"characters|no extension"):
            shard_dataset(
                f"{folder}/from/",
                f"{folder}/to/{{shard}}.tar",
                overwrite=overwrite,
                append=not overwrite,
                progress=False,
            )
        assert _files(f"{folder}/to") == before
