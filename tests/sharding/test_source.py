"""What shards are made from, with one face."""

from __future__ import annotations

import gzip
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.support.shard_places import Place, memory_place, tar_of
from torchdata_remote import labels
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import ShardWriteError
from torchdata_remote.sharding.planned_samples import DatasetSamples
from torchdata_remote.sharding.source import DatasetSource, FilesSource, ShardSource, open_source
from torchdata_remote.writing.shard_folder import ShardFolder
from torchdata_remote.writing.template import ShardTemplate

FILES = {"cat/1.jpg": b"c1", "cat/2.jpg": b"c22", "dog/1.jpg": b"d"}


def opened(source: Any, *, travels: bool = True, **options: Any) -> ShardSource:
    given: dict[str, Any] = {"pattern": None, "labels": None, **options}
    return open_source(source, options=StorageOptions(), travels=travels, **given)


def prepared(source: ShardSource, place: Place, *, known: Any = None, resume: bool = True) -> ShardSource:
    folder = ShardFolder(ShardTemplate(f"{place.url}{{shard:03d}}.tar"), StorageOptions())
    source.prepare(folder, known=known, resume=resume, progress=False)
    return source


def drawn(source: ShardSource, indices: list[int]) -> list[dict[str, Any]]:
    samples = source.select(np.array(indices)).draw(1 << 20)
    return [
        {name: bytes(value) if isinstance(value, memoryview) else value for name, value in sample.items()}
        for _, sample in samples
    ]


def test_files_are_numbered_and_labelled_by_their_folders() -> None:
    """Samples by number, with labels by their folders."""
    place = memory_place()
    place.put(FILES)
    source = prepared(opened(place.url, labels=labels.parent_directory()), memory_place())
    assert len(source) == 3
    assert drawn(source, [2, 0]) == [
        {"__key__": "dog/1", "jpg": b"d", "cls": 1},
        {"__key__": "cat/1", "jpg": b"c1", "cls": 0},
    ]
    assert source.classes is not None
    assert [entry["id"] for entry in source.classes.values()] == [0, 1]
    sizes = source.sample_bytes()
    assert sizes is not None
    assert sizes.tolist() == [4 * 512] * 3


def test_known_classes_keep_their_numbers() -> None:
    """New ones follow them."""
    place = memory_place()
    place.put(FILES)
    first = prepared(opened(place.url, pattern="dog/*", labels=labels.parent_directory()), memory_place())
    assert first.classes is not None
    both = prepared(opened(place.url, labels=labels.parent_directory()), memory_place(), known=first.classes)
    assert [sample["cls"] for sample in drawn(both, [0, 1, 2])] == [1, 1, 0]


def test_a_path_object_is_the_same_source_as_its_string(tmp_path: pathlib.Path) -> None:
    """As the same path in a string."""
    Place(f"{tmp_path}/").put(FILES)
    assert opened(tmp_path).digest == opened(str(tmp_path)).digest


@pytest.mark.parametrize("compressed", [False, True])
def test_an_index_of_a_compressed_source_is_reused(compressed: bool) -> None:
    """Where unpacking took long, it is kept with what was unpacked, for the next run of the same source."""
    source, to = memory_place(), memory_place()
    data = tar_of(FILES)
    source.put({"a.tar.gz": gzip.compress(data)} if compressed else {"a.tar": data})
    first = prepared(opened(source.url), to)
    left = to.files()
    assert bool(left) == compressed
    again = prepared(opened(source.url), to)
    assert again.plan_digest() == first.plan_digest()
    assert to.files() == left
    assert drawn(again, [0, 2]) == [{"__key__": "cat/1", "jpg": b"c1"}, {"__key__": "dog/1", "jpg": b"d"}]


def test_a_destination_within_the_source_is_refused() -> None:
    """A destination within the source, or a shard that would be called as one of its archives."""
    place = memory_place()
    place.put(FILES)
    for below in (place, place.below("deep")):
        with pytest.raises(ShardWriteError, match="is inside the source"):
            prepared(opened(place.url), below)
    shards = memory_place()
    shards.put({"000.tar": tar_of(FILES)})
    with pytest.raises(ShardWriteError, match=r"000\.tar is part of the source"):
        prepared(opened(f"{shards.url}000.tar"), shards)


def test_plan_digests_differ_by_samples_sizes_and_labels() -> None:
    """By the samples, their sizes and their labels."""
    digests = set()
    for files in (FILES, {**FILES, "dog/1.jpg": b"dd"}, {**FILES, "dog/2.jpg": b"d"}):
        place = memory_place()
        place.put(files)
        for labeller in (None, labels.parent_directory()):
            source = prepared(opened(place.url, labels=labeller), memory_place())
            assert source.plan_digest() == source.plan_digest()
            digests.add(source.plan_digest())
    assert len(digests) == 6


class _Digits(list[Any]):
    classes = ("zero", "one")


def test_a_dataset_has_numbered_items_and_its_own_classes() -> None:
    """The classes are those of its attribute."""
    source = prepared(opened(_Digits([("a", 0), ("b", 1)])), memory_place())
    assert isinstance(source, DatasetSource)
    assert len(source) == 2
    assert drawn(source, [1]) == [{"__key__": "000000001", "txt": "b", "cls": 1}]
    assert source.classes is not None
    assert {name: entry["id"] for name, entry in source.classes.items()} == {"zero": 0, "one": 1}
    assert prepared(opened([("a", 0)]), memory_place()).classes is None


def test_a_dataset_is_pickled_only_if_workers_do_not_have_it() -> None:
    """To workers that have it already, only indices are sent."""
    dataset = [("a", 0)]
    for travels, here, expected in ((True, False, dataset), (False, True, dataset), (False, False, None)):
        samples = opened(dataset, travels=travels).select(np.array([0]), here=here)
        assert isinstance(samples, DatasetSamples)
        assert samples.dataset is expected


def test_digests_of_datasets_differ_by_type_and_length() -> None:
    """By type and length, which is all that is known before they are read."""
    digests = {opened(data).digest for data in ([1], [1, 2], (1,), _Digits([1]))}
    assert len(digests) == 4
    assert opened([1]).digest == opened([2]).digest == opened([3]).plan_digest()


@pytest.mark.parametrize("source", [iter([1]), 3, None, {1, 2}])
def test_an_invalid_source_is_an_error(source: Any) -> None:
    """The error says what was expected."""
    with pytest.raises(TypeError, match="expected a URL, a path or a map-style dataset"):
        opened(source)


@pytest.mark.parametrize("option", [{"pattern": "*"}, {"labels": labels.parent_directory()}])
def test_options_of_files_are_refused_for_datasets(option: dict[str, Any]) -> None:
    """A dataset has neither paths nor labels of its own kind."""
    with pytest.raises(TypeError, match="for files"):
        opened([1], **option)


def test_a_string_is_a_url_and_not_a_dataset() -> None:
    """A string is a URL, though it has a length."""
    place = memory_place()
    place.put(FILES)
    assert isinstance(opened(place.url), FilesSource)
