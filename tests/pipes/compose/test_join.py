"""Shard sets joined by key, by files of keys and side by side."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.servers.s3 import S3Server
from tests.support.s3_stores import put
from tests.support.shard_sets import Samples, write_set
from torchdata_remote import (
    AsyncPrefetch,
    IterableWrapper,
    Resumable,
    ShardWriter,
    World,
    join,
    raise_error,
    skip_with_warning,
    stateful_loader,
    stream_shards,
)
from torchdata_remote.errors import EmptyShareError, JoinError, ManifestError, ObjectChangedError
from torchdata_remote.fetch.selections.join_plan import planned_views
from torchdata_remote.formats.key_index import keys_url
from torchdata_remote.pipes.base.chain import all_pipes
from torchdata_remote.pipes.compose import join_shards
from torchdata_remote.pipes.compose.joined_reader import JoinedTarReader
from torchdata_remote.testing import all_worlds, assert_resumes_everywhere

WAYS = ["order", "keys"]


def new_folder() -> str:
    return f"memory://{uuid.uuid4().hex}"


def pictures(keys: Sequence[int]) -> Samples:
    return [(f"s/{key}", {"jpg": b"picture %d" % key * (key % 3 * 40 + 1), "cls": b"%d" % (key % 7)}) for key in keys]


def captions(keys: Sequence[int]) -> Samples:
    return [(f"s/{key}", {"txt": b"caption %d" % key}) for key in keys]


def shards_of(keys: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    borders = [0, *sorted({cut % len(keys) for cut in cuts} - {0}), len(keys)]
    return [keys[start:end] for start, end in itertools.pairwise(borders)]


def two_sets(num_shards: int = 3, samples_per_shard: int = 4, folder: str = "") -> dict[str, Any]:
    folder, keys = folder or new_folder(), range(num_shards * samples_per_shard)
    shards = [keys[start : start + samples_per_shard] for start in keys[::samples_per_shard]]
    return {
        "image": write_set(f"{folder}/image", list(map(pictures, shards))),
        "caption": write_set(f"{folder}/caption", list(map(captions, shards))),
    }


def content(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "__url__"}


def expected(key: int, *, has_caption: bool = True) -> dict[str, Any]:
    ((name, members),) = pictures([key])
    return {"__key__": name, **members, **({"txt": b"caption %d" % key} if has_caption else {})}


@st.composite
def placed_keys(draw: st.DrawFn) -> tuple[list[int], list[Sequence[int]], list[Sequence[int]]]:
    """Keys of a first set with its shards, and the shards of a second one in another order, some missing, some new."""
    first = draw(st.permutations(range(draw(st.integers(1, 25)))))
    cuts = st.lists(st.integers(0, 99), max_size=4)
    second = draw(st.permutations([*first, *range(100, 100 + draw(st.integers(0, 3)))]))
    second = second[draw(st.integers(0, len(second) - 1)) :]
    return first, shards_of(first, draw(cuts)), shards_of(second, draw(cuts))


@settings(max_examples=40)
@given(placed=placed_keys(), how=st.sampled_from(["inner", "left"]), interleave=st.integers(1, 3))
def test_each_key_gets_the_members_of_all_sets_in_any_order_and_shards(placed: Any, how: Any, interleave: int) -> None:
    keys, first, second = placed
    found = set(itertools.chain.from_iterable(second))
    folder = new_folder()
    sets = {
        "image": write_set(f"{folder}/image", list(map(pictures, first))),
        "caption": write_set(f"{folder}/caption", list(map(captions, second))),
    }
    wanted = [key for key in keys if how == "left" or key in found]
    if not wanted:
        with pytest.raises(JoinError, match="no key in common"):
            list(join(sets, how=how))
        return
    samples = list(map(content, join(sets, how=how, shuffle=False)))
    assert samples == [expected(key, has_caption=key in found) for key in wanted]
    shuffled = list(map(content, join(sets, how=how, interleave=interleave, seed=1)))
    assert sorted(map(str, shuffled)) == sorted(map(str, samples))
    if found.issuperset(keys):
        assert list(map(content, join(sets, align="keys", shuffle=False))) == samples
    else:
        with pytest.raises(JoinError, match=rf"misses {len(set(keys) - found):,} of the {len(keys):,} keys of 'image'"):
            list(join(sets, align="keys"))


@pytest.mark.parametrize("align", WAYS)
@settings(max_examples=30)
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
    folder, keys = new_folder(), range(sum(sizes))
    shards = shards_of(keys, list(itertools.accumulate(sizes)))
    sets = {
        "image": write_set(f"{folder}/image", list(map(pictures, shards))),
        "caption": write_set(f"{folder}/caption", list(map(captions, shards))),
    }

    def share(world: World) -> list[dict[str, Any]]:
        pipe = join(sets, align=align, world=world)
        return list(map(content, pipe.equalize_ranks(mode="drop") if equalized else pipe))

    worlds = list(all_worlds(ranks, workers))
    if len(keys) < len(worlds):
        with pytest.raises(EmptyShareError):
            share(worlds[0])
        return
    shares = [share(world) for world in worlds]
    read = sorted(map(str, itertools.chain.from_iterable(shares)))
    everything = sorted(str(expected(key)) for key in keys)
    if equalized:
        assert {len(one) for one in shares} == {len(keys) // len(worlds)}
        assert len(set(read)) == len(read)
        assert set(read) <= set(everything)
    else:
        assert read == everything


@pytest.mark.parametrize("align", WAYS)
def test_the_order_is_that_of_the_first_set_alone(align: Any) -> None:
    """Two epochs, shuffled; so both ways yield the same."""
    sets = two_sets()
    alone, joined = stream_shards(sets["image"], seed=3), join(sets, align=align, seed=3)
    for _ in range(2):
        image_only = [{**sample, "txt": b"caption " + sample["__key__"][2:].encode()} for sample in alone]
        assert list(joined) == image_only


@pytest.mark.parametrize("align", WAYS)
def test_resumes_after_any_sample(align: Any) -> None:
    sets = two_sets(num_shards=3, samples_per_shard=2)
    assert_resumes_everywhere(lambda: join(sets, align=align, shuffle="shards", interleave=2))
    assert_resumes_everywhere(lambda: join(sets, align=align, shuffle_buffer_size=4), num_streams=2)
    assert_resumes_everywhere(lambda: join(sets, align=align, shuffle=False).to_tuple("__key__", "txt").batch(2))
    one = two_sets(num_shards=1, samples_per_shard=5)
    assert_resumes_everywhere(lambda: join(one, align=align, shuffle=False).equalize_ranks(), num_streams=3)


def test_resumes_where_shards_are_compressed() -> None:
    folder = new_folder()
    for name, extension in (("image", "jpg"), ("caption", "txt")):
        with ShardWriter(f"{folder}/{name}/{{shard}}.tar.gz", max_shard_samples=3) as writer:
            for key in range(7):
                writer.write({"__key__": str(key), extension: b"%d" % key})
    sets = {name: f"{folder}/{name}/index.json" for name in ("image", "caption")}
    assert_resumes_everywhere(lambda: join(sets, shuffle="shards", interleave=2))
    with pytest.raises(ManifestError, match="compressed by gzip"):
        list(join(sets, align="keys"))


@pytest.mark.parametrize("align", WAYS)
def test_workers_of_a_loader_share_the_samples(align: Any, tmp_path: Path) -> None:
    pipe = join(two_sets(folder=f"file://{tmp_path}"), align=align).to_tuple("__key__", "txt")
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="forkserver", timeout=60)
    epochs = [list(map(tuple, loader)), list(map(tuple, loader))]
    assert epochs[0] != epochs[1]
    for pairs in epochs:
        assert sorted(pairs) == sorted((f"s/{key}", b"caption %d" % key) for key in range(12))


@pytest.mark.parametrize("align", WAYS)
def test_a_loader_hands_its_plan_to_its_workers_and_resumes(align: Any, tmp_path: Path) -> None:
    sets = two_sets(folder=f"file://{tmp_path}", samples_per_shard=6)

    def loader(num_workers: int) -> Any:
        pipe = join(sets, align=align, shuffle_buffer_size=4).to_tuple("__key__", "txt")
        return stateful_loader(pipe, num_streams=4, batch_size=2, num_workers=num_workers, collate_fn=list)

    first = loader(2)
    batches = iter(first)
    pairs = next(batches) + next(batches) + next(batches)
    again = loader(0)
    again.load_state_dict(first.state_dict())
    pairs += itertools.chain.from_iterable(again)
    assert sorted(pairs) == sorted((f"s/{key}", b"caption %d" % key) for key in range(18))


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
    shards = [captions(swapped[start : start + 4]) for start in (0, 4, 8)]
    sets["caption"] = write_set(new_folder(), shards)
    samples = iter(join(sets, shuffle=False, on_bad_shard=skip_with_warning))
    assert list(map(content, itertools.islice(samples, 5))) == [expected(key) for key in range(5)]
    with pytest.raises(JoinError, match=r"the sample 's/5' of .*/image/0001.tar has a different key .*align='keys'"):
        next(samples)
    assert list(map(content, join(sets, align="keys", shuffle=False))) == [expected(key) for key in range(12)]


@pytest.mark.parametrize(("number", "longer"), [(3, "image"), (5, "caption")])
def test_a_set_with_more_samples_is_found_where_they_are_read_side_by_side(number: int, longer: str) -> None:
    folder = new_folder()
    write_set(f"{folder}/image", [pictures(range(4))])
    write_set(f"{folder}/caption", [captions(range(number))])
    sets = {name: f"{folder}/{name}/" for name in ("image", "caption")}
    with pytest.raises(JoinError, match=f"of the set '{longer}' has more samples than"):
        list(join(sets, align="order", shuffle=False))
    with pytest.raises(JoinError, match=f"have 4 and {number} samples"):
        list(join({name: f"{url}index.json" for name, url in sets.items()}, align="order"))


def test_other_shards_cannot_be_read_side_by_side() -> None:
    sets = two_sets()
    fewer = write_set(new_folder(), [captions(range(12))])
    with pytest.raises(JoinError, match="has 3 shards and 'caption' has 1"):
        list(join({**sets, "caption": fewer}, align="order"))
    folders = {name: url.removesuffix("index.json") for name, url in sets.items()}
    renamed = [f"{folders['caption']}{number:04d}.tar" for number in (0, 2, 1)]
    with pytest.raises(JoinError, match="have different names"):
        list(join({**folders, "caption": renamed}, align="order"))
    with pytest.raises(JoinError, match="with and without their number of samples"):
        list(join({**sets, "caption": sets["caption"].removesuffix("index.json")}, align="order"))


@pytest.mark.parametrize("align", WAYS)
def test_only_selected_members_come(align: Any) -> None:
    sets = two_sets()
    samples = list(join(sets, align=align, members={"image": ["JPG"], "caption": ".txt"}, shuffle=False))
    assert list(map(content, samples)) == [
        {name: value for name, value in expected(key).items() if name != "cls"} for key in range(12)
    ]


def test_members_of_one_name_in_two_sets_are_an_error_unless_one_is_selected() -> None:
    folder = new_folder()
    both = [(f"s/{key}", {"txt": b"caption %d" % key, "cls": b"old"}) for key in range(3)]
    sets = {
        "image": write_set(f"{folder}/image", [pictures(range(3))]),
        "caption": write_set(f"{folder}/caption", [both]),
    }
    with pytest.raises(JoinError, match="The sets 'image' and 'caption' both have members 'cls'"):
        list(join(sets, align="keys"))
    with pytest.raises(
        JoinError, match=r"caption/0000.tar: the set 'caption' has one of the members 'txt', 'cls', which"
    ):
        list(join(sets, align="order"))
    for align in ("order", "keys"):
        samples = join(sets, align=align, members={"caption": "txt"}, shuffle=False)
        assert list(map(content, samples)) == [expected(key) for key in range(3)]
    with pytest.raises(JoinError, match="No sample of the set 'caption' has a member 'text'"):
        list(join(sets, members={"caption": "text"}))


def test_samples_without_the_selected_members_count_as_missing() -> None:
    folder = new_folder()
    some = [(f"s/{key}", {"txt": b"caption %d" % key} if key else {"json": b"{}"}) for key in range(3)]
    sets = {
        "image": write_set(f"{folder}/image", [pictures(range(3))]),
        "caption": write_set(f"{folder}/caption", [some]),
    }
    members = {"caption": "txt"}
    with pytest.raises(JoinError, match="'caption' misses 1 of the 3 keys of 'image': 's/0'"):
        list(join(sets, members=members))
    found = list(map(content, join(sets, members=members, how="left", shuffle=False)))
    assert found == [expected(key, has_caption=key > 0) for key in range(3)]
    turned = dict(reversed(sets.items()))
    with pytest.raises(JoinError, match="caption: 1 of 3 samples have none of the members"):
        list(join(turned, members=members))
    assert len(list(join(turned, members=members, how="left"))) == 2


@pytest.mark.parametrize("lacking", ["image", "caption"])
def test_samples_without_the_selected_members_are_found_where_they_are_read_side_by_side(lacking: str) -> None:
    """A sample that would come without its caption is an error by keys, and so it is in order."""
    folder, name = new_folder(), {"image": "jpg", "caption": "txt"}[lacking]
    some = [(f"s/{key}", {name: b"0"} if key != 1 else {"json": b"{}"}) for key in range(3)]
    sets = {
        other: write_set(
            f"{folder}/{other}", [some if other == lacking else [(f"s/{key}", {"cls": b"1"}) for key in range(3)]]
        )
        for other in ("image", "caption")
    }
    with pytest.raises(JoinError, match=rf"{lacking}/0000.tar: the sample 's/1' of the set '{lacking}' has none of"):
        list(join(sets, align="order", members={lacking: name}, shuffle=False))


def test_a_key_that_is_twice_in_a_set_is_an_error() -> None:
    folder = new_folder()
    sets = {
        "image": write_set(f"{folder}/image", [pictures(range(3))]),
        "caption": write_set(f"{folder}/caption", [captions([0, 1]), captions([1, 2])]),
    }
    with pytest.raises(JoinError, match=r"caption: the key 's/1' is in .*0000.tar and in .*0001.tar"):
        list(join(sets, align="keys"))


def test_three_sets_come_together() -> None:
    sets = two_sets()
    scores = [(f"s/{key}", {"json": b"%d" % key}) for key in range(12)]
    sets["score"] = write_set(new_folder(), [scores[:4], scores[4:8], scores[8:]])
    together = [{**expected(key), "json": b"%d" % key} for key in range(12)]
    for align in WAYS:
        assert list(map(content, join(sets, align=align, shuffle=False))) == together  # type: ignore[arg-type]


@pytest.mark.parametrize("align", WAYS)
def test_a_shard_that_changes_after_the_listing_is_an_error(align: Any, tmp_path: Path) -> None:
    two_sets(folder=f"file://{tmp_path}")
    pipe = join({name: f"file://{tmp_path}/{name}/" for name in ("image", "caption")}, align=align, shuffle="shards")
    (listing,) = (found for found in all_pipes(pipe) if isinstance(found, join_shards.JoinShards))
    urls = list(listing)
    write_set(f"file://{tmp_path}/caption", [captions(range(first, first + 4)) for first in (0, 40, 80)])
    streams = AsyncPrefetch(join_shards.ShardsOfJoin(IterableWrapper(urls)))
    reader = JoinedTarReader(
        streams, dict.fromkeys(listing.sources), on_bad_shard=raise_error, on_bad_member=raise_error, interleave=1
    )
    with pytest.raises(ObjectChangedError):
        list(reader)


def test_keys_of_another_version_of_a_shard_are_an_error() -> None:
    sets = two_sets()
    memory, url = fsspec.filesystem("memory"), sets["caption"].replace("index.json", "0000.tar")
    memory.pipe(keys_url(url), memory.cat(keys_url(sets["image"].replace("index.json", "0000.tar"))))
    with pytest.raises(ManifestError, match=r"0000\.tar\.keys"):
        list(join(sets, align="keys"))


def test_a_plan_is_made_once_for_the_same_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    sets, plans = two_sets(), []

    def counted(*arguments: Any) -> Any:
        plans.append(arguments)
        return planned_views(*arguments)

    monkeypatch.setattr(join_shards, "planned_views", counted)
    data = Resumable(join(sets, align="keys"), num_streams=2)
    pipe = join(sets, align="keys")
    assert len(list(data)) == len(list(data)) == len(list(pipe)) == len(list(pipe)) == 12
    assert len(plans) == 2


def test_the_sets_may_be_pipes_of_urls() -> None:
    sets = two_sets()
    image = IterableWrapper([sets["image"]]).list_remote().filter(_is_last)
    for align in WAYS:
        caption = IterableWrapper([sets["caption"]]).list_remote().filter(_is_last)
        pipe = join({"image": image, "caption": caption}, align=align, shuffle=False)  # type: ignore[arg-type]
        assert list(map(content, pipe)) == [expected(key) for key in range(8, 12)]
    assert [s["__key__"] for s in join({"image": image, "caption": sets["caption"]}, shuffle=False)] == [
        f"s/{key}" for key in range(8, 12)
    ]


def _is_last(url: str) -> bool:
    return url.endswith("2.tar")


def test_counts_are_known_where_manifests_have_them() -> None:
    sets = two_sets()
    for align in WAYS:
        pipe = join(sets, align=align, world=World(rank=0, world_size=5))  # type: ignore[arg-type]
        assert len(pipe.equalize_ranks(mode="drop")) == 2


@pytest.mark.parametrize("align", WAYS)
def test_each_set_may_have_options_of_its_own(align: Any, moto: S3Server, tmp_path: Path) -> None:
    bucket, local = moto.new_bucket(), two_sets(folder=f"file://{tmp_path}")
    written = tmp_path / "caption"
    for path in written.iterdir():
        put(moto, bucket, f"captions/{path.name}", path.read_bytes())
    sets = {"image": local["image"], "caption": f"s3://{bucket}/captions/index.json"}
    options = {"caption": moto.storage_options}
    samples = join(sets, align=align, shuffle=False, storage_options=options)
    assert list(map(content, samples)) == [expected(key) for key in range(12)]
    twice = {name: f"s3://{bucket}/{name}/" for name in sets}
    with pytest.raises(ValueError, match="storage_options differ for two sets in the same bucket, s3://"):
        join(twice, storage_options=options)


def test_extra_keys_and_missing_ones_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    sets = two_sets()
    sets["caption"] = write_set(new_folder(), [captions([1, 2, 77])])
    with caplog.at_level(logging.INFO, "torchdata_remote"):
        assert len(list(join(sets, how="inner"))) == 2
    assert "2 samples; caption: 10 keys missing, 1 keys that the first set does not have" in caplog.text
