"""Shard sets joined by key, by files of keys or side by side: each sample once with the members of all, or an error."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.files_over_http import files_over_http
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from torchdata_remote import (
    IterableWrapper,
    ShardWriter,
    World,
    index_shards,
    join,
    skip_with_warning,
    stream_shards,
)
from torchdata_remote.errors import (
    EmptyShareError,
    JoinError,
    ManifestError,
    ObjectChangedError,
    ShardReadError,
    UrlError,
)
from torchdata_remote.testing import FaultyStore, all_worlds

Samples = Sequence[tuple[str, dict[str, bytes]]]
WAYS = pytest.mark.parametrize("align", ["order", "keys"])


def new_folder() -> str:
    return f"memory://{uuid.uuid4().hex}"


def write_set(folder: str, shards: Sequence[Samples]) -> str:
    """Write shards with any borders, and their manifest, whose URL is returned."""
    files, path = fsspec.core.url_to_fs(folder)
    files.makedirs(path, exist_ok=True)
    for number, samples in enumerate(shards):
        members = ((f"{key}.{name}", value) for key, members in samples for name, value in members.items())
        files.pipe_file(f"{path}/{number:04d}.tar", pack_tar(members))
    index_shards(f"{folder}/")
    return f"{folder}/index.json"


def pictures(keys: Sequence[int]) -> Samples:
    return [(f"s/{key}", {"jpg": b"picture %d" % key * (key % 3 * 40 + 1), "cls": b"%d" % (key % 7)}) for key in keys]


def captions(keys: Sequence[int]) -> Samples:
    return [(f"s/{key}", {"txt": b"caption %d" % key}) for key in keys]


def shards_of(keys: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    borders = [0, *sorted({cut % len(keys) for cut in cuts} - {0}), len(keys)]
    return [keys[start:end] for start, end in itertools.pairwise(borders)]


def sets_of(first: Sequence[Samples], second: Sequence[Samples], folder: str = "") -> dict[str, Any]:
    folder = folder or new_folder()
    return {"image": write_set(f"{folder}/image", first), "caption": write_set(f"{folder}/caption", second)}


def two_sets(num_shards: int = 3, samples_per_shard: int = 4, folder: str = "") -> dict[str, Any]:
    keys = range(num_shards * samples_per_shard)
    shards = [keys[start : start + samples_per_shard] for start in keys[::samples_per_shard]]
    return sets_of(list(map(pictures, shards)), list(map(captions, shards)), folder)


def content(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "__url__"}


def joined(sets: Any, **options: Any) -> list[dict[str, Any]]:
    return list(map(content, join(sets, **{"shuffle": False, **options})))


def expected(key: int, *, has_caption: bool = True) -> dict[str, Any]:
    ((name, members),) = pictures([key])
    return {"__key__": name, **members, **({"txt": b"caption %d" % key} if has_caption else {})}


# What is read


@st.composite
def placed_keys(draw: st.DrawFn) -> tuple[list[int], list[Sequence[int]], list[Sequence[int]]]:
    """Keys of a first set with its shards, and the shards of a second one in another order, some missing, some new."""
    first = draw(st.permutations(range(draw(st.integers(1, 25)))))
    cuts = st.lists(st.integers(0, 99), max_size=4)
    second = draw(st.permutations([*first, *range(100, 100 + draw(st.integers(0, 3)))]))
    second = second[draw(st.integers(0, len(second) - 1)) :]
    return first, shards_of(first, draw(cuts)), shards_of(second, draw(cuts))


@settings(max_examples=20)
@given(placed=placed_keys(), how=st.sampled_from(["inner", "left"]), interleave=st.integers(1, 3))
def test_each_key_gets_the_members_of_all_sets_in_any_order_and_shards(placed: Any, how: Any, interleave: int) -> None:
    keys, first, second = placed
    found = set(itertools.chain.from_iterable(second))
    sets = sets_of(list(map(pictures, first)), list(map(captions, second)))
    wanted = [key for key in keys if how == "left" or key in found]
    if not wanted:
        with pytest.raises(JoinError, match="no key in common"):
            joined(sets, how=how)
        return
    samples = joined(sets, how=how)
    assert samples == [expected(key, has_caption=key in found) for key in wanted]
    assert sorted(map(str, joined(sets, how=how, interleave=interleave, shuffle=True))) == sorted(map(str, samples))
    if found.issuperset(keys):
        assert joined(sets, align="keys") == samples
    else:
        with pytest.raises(JoinError, match=rf"misses {len(set(keys) - found):,} of the {len(keys):,} keys of 'image'"):
            joined(sets, align="keys")


@WAYS
@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    ranks=st.integers(1, 3),
    workers=st.integers(1, 2),
    equalized=st.booleans(),
)
def test_all_readers_together_have_each_sample_once(
    align: Any, sizes: list[int], ranks: int, workers: int, equalized: bool
) -> None:
    """Also where there are fewer shards than readers, so that shards are split by samples."""
    keys = range(sum(sizes))
    shards = shards_of(keys, list(itertools.accumulate(sizes)))
    sets = sets_of(list(map(pictures, shards)), list(map(captions, shards)))

    def share(world: World) -> list[str]:
        pipe = join(sets, align=align, world=world)
        return [str(content(sample)) for sample in (pipe.equalize_ranks(mode="drop") if equalized else pipe)]

    worlds = list(all_worlds(ranks, workers))
    if len(keys) < len(worlds):
        with pytest.raises(EmptyShareError):
            share(worlds[0])
        return
    shares = list(map(share, worlds))
    read = Counter(itertools.chain.from_iterable(shares))
    everything = {str(expected(key)) for key in keys}
    assert set(read.values()) == {1}
    if equalized:
        assert {len(one) for one in shares} == {len(keys) // len(worlds)}
        assert set(read) <= everything
        counted = join(sets, align=align, world=worlds[0]).equalize_ranks(mode="drop")
        assert len(counted) == len(keys) // len(worlds)
    else:
        assert set(read) == everything


@WAYS
def test_the_order_is_that_of_the_first_set_alone(align: Any) -> None:
    """Two epochs, shuffled; so both ways yield the same. Keys and URLs are those of the first set."""
    sets = two_sets()
    alone, both = stream_shards(sets["image"], seed=3), join(sets, align=align, seed=3)
    for _ in range(2):
        assert list(both) == [{**one, "txt": b"caption " + one["__key__"][2:].encode()} for one in alone]


# Which way


def test_manifests_decide_whether_shards_are_read_side_by_side(caplog: pytest.LogCaptureFixture) -> None:
    """Not if their names or counts differ, samples may be missing, or only some members are wanted."""
    sets = two_sets()
    other = write_set(new_folder(), [captions(range(5)), captions(range(5, 8)), captions(range(8, 12))])

    def is_in_order(**arguments: Any) -> bool:
        caplog.clear()
        with caplog.at_level(logging.INFO, "torchdata_remote"):
            list(join(**{"sets": sets, **arguments}))
        return "side by side" in caplog.text

    folders = {name: url.removesuffix("index.json") for name, url in sets.items()}
    assert is_in_order()
    assert not is_in_order(sets={**sets, "caption": other})
    assert not is_in_order(sets=folders)
    assert is_in_order(sets=folders, align="order")
    assert not is_in_order(how="inner")
    assert not is_in_order(members={"caption": "txt"})


def test_samples_in_another_order_are_found_where_they_are_read_side_by_side() -> None:
    sets = two_sets()
    swapped = [0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11]
    sets["caption"] = write_set(new_folder(), [captions(swapped[start : start + 4]) for start in (0, 4, 8)])
    samples = iter(join(sets, shuffle=False, on_bad_shard=skip_with_warning))
    assert list(map(content, itertools.islice(samples, 5))) == [expected(key) for key in range(5)]
    with pytest.raises(JoinError, match=r"image/0001.tar: .* the sample 's/5' has a different key .*align='keys'"):
        next(samples)
    assert joined(sets, align="keys") == [expected(key) for key in range(12)]


@pytest.mark.parametrize(("number", "longer"), [(3, "image"), (5, "caption")])
def test_a_set_with_more_samples_is_found_where_they_are_read_side_by_side(number: int, longer: str) -> None:
    sets = sets_of([pictures(range(4))], [captions(range(number))])
    folders = {name: url.removesuffix("index.json") for name, url in sets.items()}
    with pytest.raises(JoinError, match=f"the set '{longer}' has more samples than"):
        joined(folders, align="order")
    with pytest.raises(JoinError, match=rf"0000.tar \(4 samples\) and .*\({number} samples\), so"):
        joined(sets, align="order")


def test_other_shards_cannot_be_read_side_by_side() -> None:
    sets = two_sets()
    fewer = write_set(new_folder(), [captions(range(12))])
    folders = {name: url.removesuffix("index.json") for name, url in sets.items()}
    renamed = [f"{folders['caption']}{number:04d}.tar" for number in (0, 2, 1)]
    for other, message in (
        ({**sets, "caption": fewer}, "image/0000.tar .4 samples. and .*0000.tar .12 samples., so"),
        ({**folders, "caption": renamed}, "0001.tar .*0002.tar .*, so they cannot be read side by side"),
        (
            {**sets, "caption": folders["caption"]},
            r"4 samples\) and .*None samples\), .* list all of them by their manifests",
        ),
    ):
        with pytest.raises(JoinError, match=message):
            joined(other, align="order")
    taken = {"image": IterableWrapper(list(IterableWrapper([sets["image"]]).list_remote().select(keys=["s/1"])))}
    with pytest.raises(UrlError, match=r"join: .* is a part of a shard: .* in place of join\(\)"):
        joined({**sets, **taken})


# Members and keys


def test_members_of_one_name_in_two_sets_are_an_error_unless_one_is_selected() -> None:
    both = [(f"s/{key}", {"txt": b"caption %d" % key, "cls": b"old"}) for key in range(3)]
    sets = sets_of([pictures(range(3))], [both])
    with pytest.raises(JoinError, match="The sets 'image' and 'caption' both have members 'cls'"):
        joined(sets, align="keys")
    for align in ("order", "keys"):
        assert joined(sets, align=align, members={"caption": "txt"}) == [expected(key) for key in range(3)]
    with pytest.raises(JoinError, match="No sample of the set 'caption' has a member 'text'"):
        joined(sets, members={"caption": "text"})


def test_samples_without_the_selected_members_count_as_missing() -> None:
    some = [(f"s/{key}", {"txt": b"caption %d" % key} if key else {"json": b"{}"}) for key in range(3)]
    sets = sets_of([pictures(range(3))], [some])
    members = {"caption": "txt"}
    with pytest.raises(JoinError, match="'caption' misses 1 of the 3 keys of 'image': 's/0'"):
        joined(sets, members=members)
    assert joined(sets, members=members, how="left") == [expected(key, has_caption=key > 0) for key in range(3)]
    turned = dict(reversed(sets.items()))
    with pytest.raises(JoinError, match="caption: 1 of 3 samples have none of the members"):
        joined(turned, members=members)
    assert len(joined(turned, members=members, how="left")) == 2


@pytest.mark.parametrize("lacking", ["image", "caption"])
def test_samples_without_the_selected_members_are_found_where_they_are_read_side_by_side(lacking: str) -> None:
    name = {"image": "jpg", "caption": "txt"}[lacking]
    some = [(f"s/{key}", {name: b"0"} if key != 1 else {"json": b"{}"}) for key in range(3)]
    others = [(f"s/{key}", {"cls": b"1"}) for key in range(3)]
    sets = sets_of(*(([some], [others]) if lacking == "image" else ([others], [some])))
    with pytest.raises(JoinError, match=rf"{lacking}/0000.tar: the sample 's/1' of the set '{lacking}' has none of"):
        joined(sets, align="order", members={lacking: name})


def test_a_key_that_is_twice_in_a_set_is_an_error() -> None:
    sets = sets_of([pictures(range(3))], [captions([0, 1]), captions([1, 2])])
    with pytest.raises(JoinError, match="caption: the key 's/1' is in it twice"):
        joined(sets, align="keys")


# Versions, plans and stores


@WAYS
def test_a_shard_that_changes_after_it_was_listed_is_an_error(align: Any, tmp_path: Path) -> None:
    two_sets(folder=f"file://{tmp_path}")

    def replace(url: str) -> str:
        if url.endswith("caption/0002.tar"):
            path = tmp_path / "caption" / "0002.tar"
            path.unlink()
            path.write_bytes(pack_tar((f"{key}.txt", members["txt"]) for key, members in captions(range(8, 12))))
        return url

    folders: dict[str, Any] = {
        name: IterableWrapper([f"file://{tmp_path}/{name}/"]).list_remote(pattern="*.tar")
        for name in ("image", "caption")
    }
    folders["caption"] = folders["caption"].map(replace)
    with pytest.raises((ObjectChangedError, ManifestError)):
        joined(folders, align=align)


def test_a_plan_is_made_once_for_the_same_listing(tmp_path: Path) -> None:
    two_sets(folder=f"file://{tmp_path}")
    with files_over_http(tmp_path) as address, FaultyStore(address) as store:
        sets = {name: f"{store.endpoint_url}/{name}/index.json" for name in ("image", "caption")}
        pipe = join(sets, align="keys")
        assert len(list(pipe)) == len(list(pipe)) == 12
        asked = Counter(request.path for request in store.requests if request.path.endswith(".keys"))
    assert asked == {f"/{name}/000{number}.tar.keys": 1 for name in ("image", "caption") for number in range(3)}


@WAYS
def test_each_set_may_have_options_of_its_own(align: Any, moto: S3Server, tmp_path: Path) -> None:
    bucket, local = moto.new_bucket(), two_sets(folder=f"file://{tmp_path}")
    for path in (tmp_path / "caption").iterdir():
        moto.client().put_object(Bucket=bucket, Key=f"captions/{path.name}", Body=path.read_bytes())
    sets = {"image": local["image"], "caption": f"s3://{bucket}/captions/index.json"}
    options = {"caption": moto.storage_options}
    assert joined(sets, align=align, storage_options=options) == [expected(key) for key in range(12)]
    twice = {name: f"s3://{bucket}/{name}/" for name in sets}
    with pytest.raises(ValueError, match="storage_options differ for two sets in the same bucket, s3://"):
        join(twice, storage_options=options)


def test_compressed_shards_are_read_side_by_side_only(memory_folder: str) -> None:

    for name, extension in (("image", "jpg"), ("caption", "txt")):
        with ShardWriter(f"{memory_folder}/{name}/{{shard}}.tar.gz", max_shard_samples=3) as writer:
            for key in range(7):
                writer.write({"__key__": str(key), extension: b"%d" % key})
    sets = {name: f"{memory_folder}/{name}/index.json" for name in ("image", "caption")}
    assert [(one["jpg"], one["txt"]) for one in joined(sets)] == [(b"%d" % key, b"%d" % key) for key in range(7)]
    with pytest.raises(ShardReadError, match=r"at byte 0: .*not a tar"):
        joined(sets, align="keys")


@WAYS
def test_patterns_and_policies_are_those_of_the_readers(align: Any, memory_folder: str) -> None:
    """The rest of a joined shard is skipped where one of its sets is damaged, and so is a member that is none."""
    sets = two_sets(folder=memory_folder)
    folders = {name: url.removesuffix("index.json") for name, url in sets.items()}
    assert joined(folders, align=align, pattern="*[02].tar") == [expected(key) for key in (*range(4), *range(8, 12))]
    memory, path = fsspec.filesystem("memory"), f"{folders['caption']}0001.tar".removeprefix("memory:/")
    data = memory.cat_file(path)
    memory.pipe_file(path, data[:1034] + b"\xff" + data[1035:])
    with pytest.raises(ShardReadError, match=r"0001\.tar"):
        joined(folders, align=align)
    with pytest.warns(RuntimeWarning, match=r"0001\.tar"):
        found = joined(folders, align=align, on_bad_shard=skip_with_warning)
    assert [one["__key__"] for one in found if one["__key__"] not in ("s/4", "s/5", "s/6", "s/7")] == [
        f"s/{key}" for key in (*range(4), *range(8, 12))
    ]
    assert len(found) < 12
