"""Keys and extensions: what the writer accepts the reader returns, and what would come back changed is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.archives import bare
from tests.support.shard_places import memory_place
from torchdata_remote.errors import ShardWriteError

MAX_NAME_LENGTH = 4096
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=6)
ODD = ["..", "./", "/", "//", ".", " ", "__meta__", "__", "__url__", "__key__", "a.tar", "index.json", "BZh91AY&SY"]
ODD += ["BZh5\x17rE8P", "././@LongLink", "ustar", "é", "e\u0301", "\u0130", "ß", "\U0001f426", "\udcff", "\ud83d\udc26"]
ODD += ["\ufeff", "x" * 98, "é" * 60, "d/" * 70, "x" * 4_000, "é" * 4_090, "d/" * 2_040, "._", "__MACOSX/", ".DS_Store"]
KEYS = st.lists(ANY_TEXT | st.text("aZ0./_- \t\n\\:\0", max_size=6) | st.sampled_from(ODD), min_size=1, max_size=3)
EXTENSIONS = st.sampled_from(["jpg", "JPG", "seg.png", "tar", "__x", "x__", "", "a/b", "\u0130", "x" * 95]) | ANY_TEXT
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {**members, "__key__": "".join(key)},
        KEYS,
        st.dictionaries(EXTENSIONS, st.binary(max_size=600), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@given(samples=SAMPLES, ending=st.sampled_from([".tar", ".tar.gz", ".tar.zst"]))
@example(samples=[{"__key__": "x" * (MAX_NAME_LENGTH - 4), "txt": b""}], ending=".tar")
@example(samples=[{"__key__": "x" * (MAX_NAME_LENGTH - 3), "txt": b""}], ending=".tar.gz")
@example(samples=[{"__key__": "x", "y" * MAX_NAME_LENGTH: b""}], ending=".tar")
@example(samples=[{"__key__": "\U0001f426" * (MAX_NAME_LENGTH - 4), "txt": b""}], ending=".tar.zst")
@example(samples=[{"__key__": "__a", "b__": b""}], ending=".tar")
@example(samples=[{"__key__": "a\n", "jpg\n": b""}, {"__key__": "a/", "jpg": b""}], ending=".tar")
def test_what_the_writer_accepts_the_reader_returns(samples: list[dict[str, Any]], ending: str) -> None:
    """Equal samples in equal order; what is refused leaves no trace, and the error shows the key."""
    place, accepted = memory_place(), []
    writer = tdr.ShardWriter(place.template(ending), max_shard_samples=3)
    for sample in samples:
        try:
            writer.write(sample)
        except ShardWriteError as error:
            assert f"{sample['__key__']!r:.100}" in str(error)  # noqa: PT017  # others are accepted
        else:
            accepted.append({n: value for n, value in sample.items() if n == "__key__" or not n.startswith("__")})
    if not accepted:
        with pytest.raises(ShardWriteError, match="there are no samples to write"):
            writer.close()
        assert place.files() == {}
        return
    writer.close()
    read = tdr.pipes.ShardTarReader(tdr.IterableWrapper([shard.url for shard in writer.shards]))
    assert bare(read) == accepted


REFUSED: list[tuple[Any, str]] = [
    ({"__key__": "a.b", "jpg": b""}, "'a.b'"),
    ({"__key__": "a", "JPG": b""}, "'JPG'"),
    ({"__key__": "a", "jpg": b"", "PNG": b""}, "'PNG'"),
    ({"__key__": "../a", "jpg": b""}, "leaves its folder"),
    ({"__key__": "/a", "jpg": b""}, "absolute"),
    ({"__key__": "a\0", "jpg": b""}, "NUL"),
    ({"__key__": "./a", "jpg": b""}, "read back as key"),
    ({"__key__": "", "jpg": b""}, "no key"),
    ({"__key__": "a", "": b""}, "no extension"),
    ({"__key__": "a", "x/y": b""}, "'x/y'"),
    ({"__key__": "a"}, "no members"),
    ({"__key__": "a", "__url__": "u"}, "no members"),
    ({"jpg": b""}, "__key__"),
    ({"__key__": 3, "jpg": b""}, "__key__"),
    ({"__key__": "a", 1: b""}, "1"),
    (("a", b""), "tuple"),
    ({"__key__": "\ud800", "jpg": b""}, "ud800"),
    ({"__key__": "__MACOSX/a", "jpg": b""}, "macOS"),
    ({"__key__": "x" * 5_000, "jpg": b""}, "5,004 characters, of which readers take 4,096"),
    ({"__key__": "é" * 5_000, "jpg": b""}, "characters, of which readers take 4,096"),
    ({"__key__": "folder/" * 700 + "x", "jpg": b""}, "characters, of which readers take 4,096"),
]


@pytest.mark.parametrize(("sample", "says"), REFUSED, ids=range(len(REFUSED)))
def test_a_sample_that_would_come_back_changed_is_refused_before_it_is_written(sample: Any, says: str) -> None:
    """By the writer and by the pipe; the error shows which key or extension it is, and why."""
    place = memory_place()
    with pytest.raises(ShardWriteError) as caught, tdr.ShardWriter(place.template()) as writer:
        writer.write(sample)
    assert says in str(caught.value)
    with pytest.raises(tdr.errors.RemoteDataError):
        list(tdr.IterableWrapper([sample]).write_shards(place.template()))
    assert place.files() == {}


def test_members_are_written_sorted_and_without_the_packages_own_names() -> None:
    """Whatever the order of the dict; a source sample is not changed."""
    place, sample = memory_place(), {"png": b"1", "__key__": "a", "cls": 2, "__url__": "u", "__other": 3}
    with tdr.ShardWriter(place.template()) as writer:
        writer.write(sample)
    assert place.files()["000000.tar"] == pack_tar([("a.cls", b"2"), ("a.png", b"1")])
    assert list(sample) == ["png", "__key__", "cls", "__url__", "__other"]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_a_member_that_is_too_large_is_refused_with_its_limit(ending: str) -> None:
    """The same number for writer and reader: what one accepts the other returns."""
    place = memory_place()

    def write(num_bytes: int) -> None:
        with tdr.ShardWriter(place.template(ending), max_member_bytes=10_000) as writer:
            writer.write({"__key__": "a", "bin": bytes(num_bytes)})

    with pytest.raises(ShardWriteError, match=r"'a'.*'bin'.*10,001 bytes.*max_member_bytes=10,000"):
        write(10_001)
    assert place.files() == {}
    write(10_000)
    (read,) = tdr.IterableWrapper([f"{place.url}index.json"]).list_remote().shard_tar_reader(max_member_bytes=10_000)
    assert len(read["bin"]) == 10_000
