"""Selected samples are read exactly once, others are not, and a selection that does not fit the shards is an error."""

from __future__ import annotations

import io
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from torchdata_remote import IterableWrapper, IterDataPipe, RemoteUrl, Select, ShardWriter
from torchdata_remote.errors import (
    EmptyListingError,
    EmptyShareError,
    ManifestError,
    MissingKeyError,
    MissingMemberError,
    ShardReadError,
    UrlError,
)
from torchdata_remote.testing import all_worlds, assert_resumes_everywhere, write_small_shards

FOLDER = "memory://select-small/"
NUM_SHARDS, NUM_SAMPLES = 4, 5


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, Any]]:
    """Shards in memory; their samples by key."""
    written = write_small_shards(FOLDER, num_shards=NUM_SHARDS, samples_per_shard=NUM_SAMPLES)
    return {sample["__key__"]: sample for sample in written}


def _listed(name: str = "index.json") -> IterDataPipe[RemoteUrl]:
    return IterableWrapper([FOLDER + name]).list_remote(pattern=None if name else "*.tar")


def _keys(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


SUBSETS = st.sets(st.integers(0, NUM_SHARDS * NUM_SAMPLES - 1), min_size=1)


@settings(max_examples=25)
@given(numbers=SUBSETS, ranks=st.integers(1, 3), workers=st.integers(1, 3), listed=st.sampled_from(["index.json", ""]))
def test_selected_samples_are_read_once_over_all_slots(
    samples: dict[str, Any], numbers: set[int], ranks: int, workers: int, listed: str
) -> None:
    """Whatever is selected, all slots together read exactly that; there may be fewer shards than slots."""
    wanted = {key for at, key in enumerate(samples) if at in numbers}
    read: list[str] = []
    for world in all_worlds(ranks, workers):
        chain = _listed(listed).select(keys=wanted).sharding_filter_rank(world=world).shard_tar_reader()
        try:
            for sample in chain:
                assert {name: sample[name] for name in ("cls", "txt")} == {
                    name: samples[sample["__key__"]][name] for name in ("cls", "txt")
                }
                read.append(sample["__key__"])
        except EmptyShareError:
            assert len(wanted) < ranks * workers
            return
    assert Counter(read) == Counter(wanted)


@settings(max_examples=25)
@given(numbers=SUBSETS, ranks=st.integers(1, 3), mode=st.sampled_from(["drop", "repeat"]))
def test_lengths_of_equal_ranks_are_exact(samples: dict[str, Any], numbers: set[int], ranks: int, mode: Any) -> None:
    """With equalize_ranks each rank reads what len() says."""
    wanted = [key for at, key in enumerate(samples) if at in numbers]
    if mode == "drop" and len(wanted) < ranks:
        return
    lengths = set()
    for world in all_worlds(ranks, 1):
        share = _listed().select(keys=wanted).sharding_filter_rank(world=world)
        pipe = share.shard_tar_reader().equalize_ranks(mode=mode)
        assert len(pipe) == len(_keys(pipe))
        lengths.add(len(pipe))
    assert len(lengths) == 1


def test_order_is_that_of_the_shards(samples: dict[str, Any]) -> None:
    """The order of the keys does not matter."""
    chosen = list(samples)[2:17:3]
    assert _keys(_listed().select(keys=reversed(chosen)).shard_tar_reader()) == chosen


def test_resumes_after_any_sample(samples: dict[str, Any]) -> None:
    """A state within a selection resumes at its next sample, also with shuffles above and below the reader."""
    chosen = list(samples)[1::3]

    def plain() -> Any:
        return _listed().select(keys=chosen).sharding_filter_rank().shard_tar_reader()

    assert_resumes_everywhere(plain)
    assert_resumes_everywhere(
        lambda: (
            _listed()
            .select(keys=chosen, members=["cls"])
            .shuffle_shards(seed=3)
            .sharding_filter_rank()
            .shard_tar_reader()
            .shuffle_samples(buffer_size=3, seed=0)
            .batch(2)
        ),
        num_streams=2,
    )


def test_two_workers_share_a_selection(tmp_path: Path) -> None:
    """Two worker processes read each selected sample once, and the length is known before they start."""
    written = [sample["__key__"] for sample in write_small_shards(str(tmp_path), num_shards=3, samples_per_shard=6)]
    chosen = written[::2]
    chain = IterableWrapper([f"{tmp_path}/index.json"]).list_remote().select(keys=chosen).shuffle_shards()
    pipe = chain.sharding_filter_rank().shard_tar_reader().equalize_ranks(mode="repeat").to_tuple("__key__")
    loader = tdr.stateful_loader(pipe, batch_size=2, num_workers=2)
    read = [key for (keys,) in loader for key in keys]
    assert set(read) == set(chosen)
    assert len(read) == 10  # 9 samples over 2 workers


def test_a_function_selects_by_key_and_sizes(samples: dict[str, Any]) -> None:
    """where= sees key, shard and the size of each member."""

    def is_wanted(sample: tdr.IndexedSample) -> bool:
        assert sample.members == {name: len(samples[sample.key][name]) for name in ("cls", "txt")}
        assert sample.url == samples[sample.key]["__url__"]
        return sample.members["txt"] > 40 and not sample.key.startswith("3/")

    expected = [key for key, one in samples.items() if len(one["txt"]) > 40 and not key.startswith("3/")]
    assert 0 < len(expected) < len(samples)
    assert _keys(_listed().select(where=is_wanted).shard_tar_reader()) == expected
    both = _listed().select(keys=expected[:3], where=is_wanted)
    assert _keys(both.shard_tar_reader()) == expected[:3]


def test_where_without_an_answer_is_an_error(samples: dict[str, Any]) -> None:
    """A function without a return is not taken for False."""
    with pytest.raises(TypeError, match="where must return True or False"):
        list(_listed().select(where=lambda sample: None))


@pytest.fixture(scope="module")
def pictures() -> dict[str, dict[str, Any]]:
    """Shards whose samples have different members."""
    made = [
        {"__key__": "a", "jpg": b"1" * 700, "cls": b"1", "json": b"{}"},
        {"__key__": "b", "cls": b"2", "json": b"{}", "png": b"2" * 900},
        {"__key__": "c", "json": b"{}", "jpg": b"3", "png": b"3" * 20, "cls": b"3"},
    ]
    with ShardWriter("memory://select-pictures/{shard}.tar", overwrite=True) as writer:
        for sample in made:
            writer.write(dict(sample))
    return {str(sample["__key__"]): dict(sample) for sample in made}


def _pictures() -> IterDataPipe[RemoteUrl]:
    return IterableWrapper(["memory://select-pictures/index.json"]).list_remote()


@settings(max_examples=25)
@given(
    names=st.lists(st.sampled_from(["jpg;png", "png;jpg", "cls", "json"]), min_size=1, unique=True),
    keys=st.sets(st.sampled_from("abc"), min_size=1),
)
def test_only_the_chosen_members_are_read(pictures: dict[str, Any], names: list[str], keys: set[str]) -> None:
    """Of alternatives the first one that the sample has is read, and no other member; their bytes are counted."""
    selected = _pictures().select(members=names, keys=keys)
    expected = {}
    for key in keys:
        chosen = [next(one for one in name.split(";") if one in pictures[key]) for name in names]
        expected[key] = {name: pictures[key][name] for name in chosen}
    found = {one["__key__"]: one for one in selected.shard_tar_reader()}
    assert {key: {n: v for n, v in one.items() if n[:2] != "__"} for key, one in found.items()} == expected
    padded = sum(512 + -(-len(value) // 512) * 512 for one in expected.values() for value in one.values())
    assert [url.size for url in selected] in ([padded], [url.size for url in _pictures()])


def test_a_missing_member_is_an_error(pictures: dict[str, Any]) -> None:
    """A selected sample without the member is named, with what it has."""
    with pytest.raises(MissingMemberError, match=r"'b'.*has no 'jpg'.*\['cls', 'json', 'png'\]"):
        list(_pictures().select(members=["jpg", "cls"]))
    only = _pictures().select(members="jpg", where=lambda sample: "jpg" in sample.members)
    assert _keys(only.shard_tar_reader()) == ["a", "c"]


def test_missing_keys_are_counted_and_named(samples: dict[str, Any]) -> None:
    """Keys of no shard are an error before the first URL, or a warning."""
    chosen = [next(iter(samples)), *(f"none/{at}" for at in range(7))]
    with pytest.raises(MissingKeyError, match=r"7 of 8 keys are in none of 4 shards: 'none/\d', .*, \.\.\."):
        next(iter(_listed().select(keys=chosen)))
    with pytest.warns(RuntimeWarning, match="7 of 8 keys"):
        urls = list(_listed().select(keys=chosen, on_missing_key=tdr.skip_with_warning))
    assert [url.num_samples for url in urls] == [1]


def test_a_selection_of_nothing_is_an_error(samples: dict[str, Any]) -> None:
    """Nothing selected is no empty epoch."""
    with pytest.raises(EmptyListingError, match=r"none of 20 samples in 4 shards"):
        list(_listed().select(where=lambda sample: False))
    with pytest.raises(MissingKeyError):
        list(_listed().select(keys=["none"]))
    with pytest.raises(EmptyListingError):
        list(_listed().select(keys=[]))


def test_a_shard_that_is_selected_completely_stays_as_it_is(samples: dict[str, Any]) -> None:
    """It is read by the verified path, with its checksums; shards without a sample are left out."""
    urls = list(_listed())
    chosen = list(samples)[: NUM_SAMPLES + 1]
    found = list(_listed().select(keys=chosen))
    assert [url.num_samples for url in found] == [NUM_SAMPLES, 1]
    assert found[0] == urls[0]
    assert found[0].checksums == urls[0].checksums is not None
    # Without a manifest the number of samples is known only by the selection
    found = list(_listed("").select(keys=chosen))
    assert [url.num_samples for url in found] == [NUM_SAMPLES, 1]


def test_a_key_of_several_shards_selects_all_of_them() -> None:
    """Keys need not differ between shards."""
    with ShardWriter("memory://select-twice/{shard}.tar", max_shard_samples=2, overwrite=True) as writer:
        for key in ("a", "b", "b", "c", "a", "b"):
            writer.write({"__key__": key, "cls": 1})
    urls = IterableWrapper(["memory://select-twice/index.json"]).list_remote()
    assert _keys(urls.select(keys=["b", "b"]).shard_tar_reader()) == ["b", "b", "b"]


def _refused() -> Iterator[tuple[list[str], str]]:
    yield ["samples+0-2+memory://b/0.tar+samples+0-2"], "range of samples: put select"
    yield ["memory://b/0.zip"], "is a zip"


@pytest.mark.parametrize(("urls", "why"), list(_refused()))
def test_what_is_no_whole_tar_is_refused(urls: list[str], why: str) -> None:
    """Ranges of samples and zips are refused with what to do."""
    with pytest.raises(UrlError, match=why):
        list(Select(IterableWrapper(urls), keys=["a"]))


def test_selected_samples_are_not_selected_again(samples: dict[str, Any]) -> None:
    """Two selections are one select() with both conditions."""
    once = _listed().select(keys=list(samples)[:2])
    with pytest.raises(UrlError, match="one select"):
        list(IterableWrapper(list(once)).select(where=lambda sample: True))


def test_compressed_shards_are_refused() -> None:
    """Their samples have no bytes of their own."""
    with ShardWriter("memory://select-gz/{shard}.tar.gz", overwrite=True) as writer:
        writer.write({"__key__": "a", "cls": 1})
    with pytest.raises(ManifestError, match=r"compressed by gzip"):
        list(IterableWrapper(["memory://select-gz/index.json"]).list_remote().select(keys=["a"]))


def test_tars_of_other_tools_without_keys() -> None:
    """Folders, long names and members that readers leave out are handled, and one warning says what would be faster."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("./__meta__"))
        for at in range(6):
            folder = tarfile.TarInfo(f"./{at}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            for name in ("jpg", "cls"):
                info = tarfile.TarInfo(f"./{at}/{'long' * 60}.{name}")
                info.size = 600 + at
                tar.addfile(info, io.BytesIO(bytes([at]) * info.size))
    fsspec.filesystem("memory").pipe("/select-foreign/0.tar", buffer.getvalue())
    key = f"4/{'long' * 60}"
    chain = IterableWrapper(["memory://select-foreign/"]).list_remote(pattern="*.tar").select(keys=[key], members="cls")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (sample,) = chain.shard_tar_reader()
    assert len([one for one in caught if "manifest --overwrite" in str(one.message)]) == 1
    assert {name: value for name, value in sample.items() if name[:2] != "__"} == {"cls": bytes([4]) * 604}
    assert sample["__key__"] == key


def test_keys_of_another_version_of_the_shard_are_refused() -> None:
    """A shard that was written again without its keys is an error, not another selection."""
    memory = fsspec.filesystem("memory")
    for folder, keys in (("old", "abc"), ("new", "abd")):
        with ShardWriter(f"memory://select-{folder}/{{shard}}.tar", overwrite=True) as writer:
            for key in keys:
                writer.write({"__key__": key, "cls": 1})
    memory.pipe("/select-new/0.tar.keys", memory.cat("/select-old/0.tar.keys"))
    with pytest.raises(ManifestError, match="CRC-32"):
        list(IterableWrapper(["memory://select-new/index.json"]).list_remote().select(keys=["a"]))
    with pytest.raises(ManifestError, match="last sample"):
        list(IterableWrapper(["memory://select-new/"]).list_remote(pattern="*.tar").select(keys=["a"]))


@pytest.mark.parametrize("lazy", [None, {"jpg"}])
@pytest.mark.parametrize("wanted", [["b", "e"], ["b", "c", "e"], ["a", "d"], ["c"]])
def test_keys_of_another_order_are_refused(wanted: list[str], lazy: set[str] | None) -> None:
    """Without a manifest: each sample has to have the key that the file of keys has at its bytes."""
    memory = fsspec.filesystem("memory")
    for folder, keys in (("order", "abcdef"), ("other-order", "acbdef")):
        with ShardWriter(f"memory://select-{folder}/{{shard}}.tar", overwrite=True) as writer:
            for key in keys:
                writer.write({"__key__": key, "jpg": key.encode() * 900, "cls": key.encode()})
    urls = IterableWrapper(["memory://select-order/"]).list_remote(pattern="*.tar")
    assert _keys(urls.select(keys=wanted).shard_tar_reader(lazy=lazy)) == wanted
    part = urls.select(keys=wanted).sharding_filter_rank(world=tdr.World(len(wanted) - 1, len(wanted)))
    assert _keys(part.shard_tar_reader(lazy=lazy)) == wanted[-1:]
    memory.pipe("/select-order/0.tar.keys", memory.cat("/select-other-order/0.tar.keys"))
    assert _keys(urls.select(where=lambda sample: sample.key in "adf").shard_tar_reader(lazy=lazy)) == ["a", "d", "f"]
    chain = urls.select(keys=wanted).shard_tar_reader(lazy=lazy)
    if {"b", "c"}.isdisjoint(wanted):
        assert _keys(chain) == wanted
    else:
        with pytest.raises(ShardReadError, match=r"has the key '[bc]', and another one was selected.*select again"):
            list(chain)


def test_a_plan_is_made_once_for_unchanged_shards(samples: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second epoch plans nothing; a shard that was written again is planned again."""
    planned: list[int] = []
    plan = Select._plan

    def counting(self: Select, shards: list[RemoteUrl]) -> list[RemoteUrl]:
        planned.append(len(shards))
        return plan(self, shards)

    monkeypatch.setattr(Select, "_plan", counting)
    urls = list(_listed())
    source = IterableWrapper(urls, deepcopy=False)
    pipe = source.select(where=lambda sample: sample.key.endswith("1"))
    assert list(pipe) == list(pipe)
    assert planned == [NUM_SHARDS]
    urls.pop()
    assert len(list(pipe)) == len([at for at in range(NUM_SAMPLES * 3) if at % 10 == 1])
    assert planned == [NUM_SHARDS, NUM_SHARDS - 1]


def test_stream_shards_selects(samples: dict[str, Any]) -> None:
    """The recipe passes its select= on."""
    chosen = list(samples)[::4]
    pipe = tdr.stream_shards(f"{FOLDER}index.json", select={"keys": chosen, "members": ["cls"]})
    assert sorted(_keys(pipe)) == sorted(chosen)
    with pytest.raises(TypeError, match="stream_shards: select"):
        tdr.stream_shards(FOLDER, select=chosen)  # type: ignore[arg-type]


def test_a_share_or_a_selection_is_not_selected_from(tmp_path: Path) -> None:
    """Whatever the shards are: one that was taken whole looks like one of the listing."""
    write_small_shards(f"{tmp_path}/", num_shards=2, samples_per_shard=2)
    urls = IterableWrapper([f"{tmp_path}/index.json"]).list_remote()
    with pytest.raises(ValueError, match=r"put select\(\) before sharding_filter_rank"):
        urls.sharding_filter_rank().shuffle_shards(seed=0).select(where=lambda sample: True)
    with pytest.raises(ValueError, match="has a select"):
        urls.select(where=lambda sample: True).shuffle_shards(seed=0).select(where=lambda sample: True)
