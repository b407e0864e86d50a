"""Members that cannot be part of a sample, in archives that are sound: left out alike by all that reads shards."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.archives import Members, outcome, pack_zip, read, reader
from tests.support.shard_places import memory_place
from torchdata_remote.cli import main
from torchdata_remote.errors import BadMemberError, ShardReadError
from torchdata_remote.testing import all_worlds

NO_EXTENSION = "it has no extension"
REASONS = {
    "README": NO_EXTENSION,
    "docs/Makefile": NO_EXTENSION,
    "x.": NO_EXTENSION,
    "d.e/f": NO_EXTENSION,
    ".backup": "its base name starts with a dot",
    "a/.hidden": "its base name starts with a dot",
    "/abs.txt": "it is absolute",
    "../up.txt": 'it leaves its folder by ".."',
    "a/../b.x": 'it leaves its folder by ".."',
    "x.__key__": "extensions that begin with two underscores are reserved",
    "d/x.__URL__": "names that begin and end with two underscores",
}


def good(number: int, size: int = 3) -> Members:
    """Two members."""
    return [(f"{number:06d}.cls", b"%d" % number), (f"{number:06d}.jpg", bytes([number % 251]) * size)]


def put(folder: str, shards: dict[str, bytes]) -> None:
    fsspec.filesystem("memory").pipe({f"{folder}/{name}": data for name, data in shards.items()})


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.mark.parametrize("form", ["tar", "zip"])
@pytest.mark.parametrize("name", [name for name in REASONS if name != "d/x.__URL__"])
def test_a_member_that_cannot_be_part_of_a_sample_is_refused_with_its_name_and_reason(name: str, form: str) -> None:
    data = (pack_tar if form == "tar" else pack_zip)([("a.x", b"1"), (name, b"2")])
    with pytest.raises(BadMemberError) as caught:
        list(reader(data, form))
    assert REASONS[name] in str(caught.value.reason)
    assert caught.value.member == name
    assert repr(name) in str(caught.value)
    assert "on_bad_member=skip_with_warning" in str(caught.value)


PATHS = st.text("ab./_A\n", min_size=1, max_size=12) | st.from_regex(r"\A[ab]{1,2}\.(jpg|JPG|cls|seg\.png)\Z")


def by_the_rules(names: list[str], bad: list[str]) -> list[dict[str, Any]] | None:
    """What the rules give, applied name by name; ``None`` for a key that comes back. Data are the member's number."""
    samples: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        path = name.removeprefix("./")
        base = path.rpartition("/")[2]
        all_of = name.rpartition("/")[2]
        if (all_of[:2] == "__" and all_of[-2:] == "__") or all_of.startswith("._"):
            continue
        key = path[: path.index(".", len(path) - len(base))] if "." in base else path
        extension = path[len(key) + 1 :].lower()
        is_fault = path.startswith("/") or ".." in path.split("/") or base.startswith(".") or not extension
        if is_fault or extension.startswith("__") or base[:2] == base[-2:] == "__":
            bad.append(name)
            continue
        if not samples or samples[-1]["__key__"] != key:
            if any(sample["__key__"] == key for sample in samples):
                return None
            samples.append({"__key__": key})
        if extension in samples[-1]:
            bad.append(name)
        else:
            samples[-1][extension] = bytes([number])
    return samples


@pytest.mark.filterwarnings("ignore:.*without a single sample")
@given(st.lists(PATHS.filter(lambda name: not name.endswith("/")), min_size=1, max_size=14), st.booleans())
@example(["a/b.seg.png", "a..b/c.jpg", "..a/b.jpg", "a.x/b.y", "é ü.jpg", "__a/b.x", "a__/b__.x", *REASONS], False)
@example(["k" * 300 + "a.x", "k" * 300 + "b.x", "k" * 300 + "a.y"], False)
def test_members_are_grouped_by_the_rules(names: list[str], has_row: bool) -> None:
    """Also behind a row of equal samples, which are grouped together; each bad member is reported once.

    Two dots inside a name lead nowhere; the key ends at the first dot of the base name. A repeated extension is a bad
    member, and a repeated key a bad shard.
    """
    row = [f"r/{number}.{ending}" for number in range(20) for ending in ("jpg", "cls")] if has_row else []
    names = [*row, *names]
    bad: list[str] = []
    expected = by_the_rules(names, bad)
    reported: list[str | None] = []
    data = pack_tar((name, bytes([number])) for number, name in enumerate(names))
    pipe = reader(data, on_bad_member=lambda error: reported.append(error.member))
    found, error = outcome(pipe)
    if expected is None:
        assert type(error) is ShardReadError
        assert "was already read" in str(error)
    else:
        assert (error, found) == (None, expected)
        assert reported == bad
        assert sum(pipe.skipped.bad_members.values()) == len(bad)


def test_a_sample_may_have_any_number_of_members() -> None:
    (sample,) = read(pack_tar((f"a.{number}", b"%d" % number) for number in range(3000)))
    assert sample == {"__key__": "a", **{str(number): b"%d" % number for number in range(3000)}}


def test_a_bad_member_is_skipped_with_one_warning_a_shard_and_counted(memory_folder: str) -> None:
    members = [("README", b"about"), *good(0), ("LICENSE", b""), *good(1)]
    put(memory_folder, {"0.tar": pack_tar(members), "1.tar": pack_tar([*good(2), ("x.", b"")])})
    pipe: Any = tdr.stream_shards(memory_folder, seed=None, on_bad_member=tdr.skip_with_warning)
    with pytest.warns(RuntimeWarning, match="It is left out; others of this shard are counted") as caught:
        keys = [sample["__key__"] for sample in pipe]
    assert keys == ["000000", "000001", "000002"]
    assert [("README" in str(one.message), "'x.'" in str(one.message)) for one in caught] == [
        (True, False),
        (False, True),
    ]
    assert pipe.skipped.bad_members == {NO_EXTENSION: 3}
    with quiet():
        assert len(list(pipe)) == 3
    assert pipe.skipped.bad_members == {NO_EXTENSION: 3}, "each pass counts anew"
    assert not pipe.skipped.shards


def test_a_policy_about_shards_alone_skips_the_shard(memory_folder: str) -> None:
    """And says so. Other errors of a policy are raised."""
    put(memory_folder, {"0.tar": pack_tar([*good(0), ("README", b"")]), "1.tar": pack_tar(good(1))})
    pipe: Any = tdr.stream_shards(memory_folder, seed=None, on_bad_shard=tdr.skip_with_warning)
    with pytest.warns(RuntimeWarning, match=r"README.*The rest of the shard is left out"):
        assert [sample["__key__"] for sample in pipe] == ["000001"]
    assert list(pipe.skipped.shards) == [f"{memory_folder}/0.tar"]
    assert not pipe.skipped.bad_members

    def refuse(error: BadMemberError) -> None:
        raise KeyError(error.member)

    with pytest.raises(KeyError, match="README"):
        list(tdr.stream_shards(memory_folder, seed=None, on_bad_shard=tdr.skip_with_warning, on_bad_member=refuse))


SHARDS: dict[str, Callable[[int], Members]] = {
    "first": lambda number: [("README", b"x" * 700), *good(2 * number), *good(2 * number + 1)],
    "between": lambda number: [*good(2 * number), ("README", b""), *good(2 * number + 1)],
    "within": lambda number: [*good(2 * number)[:1], ("README", b""), *good(2 * number)[1:], *good(2 * number + 1)],
    "last": lambda number: [*good(2 * number), *good(2 * number + 1), ("README", b"y" * 600)],
    "twice": lambda number: [*good(2 * number), (f"{2 * number:06d}.JPG", b"again"), *good(2 * number + 1)],
}


@pytest.mark.parametrize("where", SHARDS)
def test_manifest_index_parts_and_numbers_agree_with_skipping(memory_folder: str, where: str) -> None:
    """Samples that a manifest counts are those that readers hand out: split, equalized, by number, by key."""
    put(memory_folder, {f"{number}.tar": pack_tar(SHARDS[where](number)) for number in range(3)})
    with pytest.raises(BadMemberError, match="on_bad_member"):
        tdr.index_shards(memory_folder)
    with quiet():
        shards = tdr.index_shards(memory_folder, on_bad_member=tdr.skip_with_warning)
        assert [shard.num_samples for shard in shards] == [2, 2, 2]

        def stream(world: tdr.World) -> Any:
            urls = tdr.IterableWrapper([f"{memory_folder}/index.json"]).list_remote().sharding_filter_rank(world=world)
            return urls.shard_tar_reader(on_bad_member=tdr.skip_with_warning)

        whole = list(stream(tdr.World(0, 1)))
        assert [sample["__key__"] for sample in whole] == [f"{number:06d}" for number in range(6)]
        for ranks in (2, 5):  # more than there are shards: these are split
            parts = [list(stream(world)) for world in all_worlds(ranks, 1)]
            assert sorted((s for part in parts for s in part), key=lambda sample: sample["__key__"]) == whole
            equal = [list(stream(world).equalize_ranks(mode="drop")) for world in all_worlds(ranks, 1)]
            assert len({len(part) for part in equal}) == 1
        by_number = tdr.ShardedDataset(memory_folder, on_bad_member=tdr.skip_with_warning)
        assert [by_number[number] for number in range(len(by_number))] == whole
        assert sum(by_number.skipped.bad_members.values()) == 3
    plain = tdr.ShardedDataset(memory_folder)
    with pytest.raises(BadMemberError, match="on_bad_member"):
        [plain[number] for number in range(len(plain))]


NAMES = ["1.jpg", "README", "2.jpg", "LICENSE", "3.jpg"]


def selected(url: str, **options: Any) -> list[str]:
    chosen = tdr.stream_shards(url, shuffle=False, select={"keys": ["1", "3"]}, **options)
    return [sample["__key__"] for sample in chosen]


def joined(url: str, **options: Any) -> list[str]:
    sets = {"pictures": url, "captions": url.replace("pictures", "captions")}
    return [sample["__key__"] for sample in tdr.join(sets, shuffle=False, align="keys", **options)]


@pytest.mark.filterwarnings("ignore:.*is missing. the keys of this shard", "ignore:.*It is left out:RuntimeWarning")
@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize(("select", "expected"), [(selected, ["1", "3"]), (joined, ["1", "2", "3"])])
def test_keys_are_read_by_the_policy_for_bad_members(select: Any, expected: list[str], has_keys: bool) -> None:
    """From the headers of shards, and from files of keys that were written by the same policy; said once a shard."""
    place = memory_place()
    place.put({"pictures/0.tar": pack_tar([(name, b"x") for name in NAMES])})
    place.put({"captions/0.tar": pack_tar([(f"{key}.txt", b"y") for key in "123"])})
    if has_keys:
        tdr.index_shards(f"{place.url}pictures/", on_bad_member=tdr.skip_with_warning)
        place.delete("pictures/index.json")  # which would make the last sample's headers unnecessary
    with pytest.warns(RuntimeWarning, match="It is left out") as said:
        assert select(f"{place.url}pictures/", on_bad_member=tdr.skip_with_warning) == expected
    assert sum("It is left out" in str(one.message) for one in said) == (1 if has_keys else 2), "at keys and at samples"
    with pytest.raises(BadMemberError, match="on_bad_member=skip_with_warning"):
        select(f"{place.url}pictures/")


SOURCES: dict[str, dict[str, bytes]] = {
    "an archive": {"0.tar": pack_tar([("README", b"x"), *good(0), ("LICENSE", b""), *good(1)])},
    "a compressed archive": {
        "0.tar.gz": gzip.compress(pack_tar([("README", b"x"), *good(0), ("LICENSE", b""), *good(1)]))
    },
    "archives": {"0.tar": pack_tar([*good(0), ("README", b"")]), "1.tar": pack_tar([("LICENSE", b""), *good(1)])},
    "an archive of archives": {
        "all.tar": pack_tar(
            [("README", b""), ("n0.tar", pack_tar([*good(0), ("LICENSE", b"")])), ("n1.tar", pack_tar(good(1)))]
        )
    },
    "an archive of archives and others": {
        "all.tar": pack_tar(
            [("n0.tar", pack_tar(good(0))), ("about.txt", b""), ("x", b""), ("n1.tar", pack_tar(good(1)))]
        )
    },
    "files": {**dict(good(0)), "README": b"x", **dict(good(1)), "a/.backup": b"y"},
}


@pytest.mark.parametrize("source", SOURCES)
def test_any_source_is_sharded_without_its_bad_members(source: str, memory_folder: str) -> None:
    """Two of them in each; without the option it is an error, before anything is written."""
    put(f"{memory_folder}/from", SOURCES[source])
    template = f"{memory_folder}/to/{{shard}}.tar"
    with pytest.raises(BadMemberError, match="on_bad_member"):
        tdr.shard_dataset(f"{memory_folder}/from/", template, seed=None, progress=False)
    assert fsspec.filesystem("memory").glob(f"{memory_folder}/to/*.tar") == []
    reported: list[BadMemberError] = []
    (shard,) = tdr.shard_dataset(
        f"{memory_folder}/from/", template, seed=None, progress=False, on_bad_member=reported.append
    )
    assert (len(reported), shard.num_samples) == (2, 2)
    found = list(tdr.stream_shards(f"{memory_folder}/to/", seed=None))
    assert [sample["jpg"] for sample in found] == [b"\0" * 3, b"\1" * 3]


def test_the_shard_command_leaves_bad_members_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With their number and the reasons."""
    (tmp_path / "0.tar").write_bytes(SOURCES["an archive"]["0.tar"])
    command = ["shard", f"{tmp_path}/0.tar", f"{tmp_path}/to/{{shard}}.tar", "--quiet"]
    assert main(command) == 1
    assert "on_bad_member" in capsys.readouterr().err
    with quiet():
        assert main([*command, "--on-bad-member", "skip"]) == 0
    assert "2 members left out: it has no extension" in capsys.readouterr().out
