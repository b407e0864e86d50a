"""``shard_dataset`` of datasets of the package ``datasets``, and of others that return decoded pictures."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import torchdata_remote as tdr
from tests.support.shard_places import memory_place

datasets = pytest.importorskip("datasets")


def picture(number: int, form: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    pixels = np.frombuffer(hashlib.sha512(bytes([number])).digest() * 3, np.uint8).reshape(8, 8, 3)
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


PICTURES = [picture(number, "PNG" if number % 3 == 0 else "JPEG") for number in range(80)]
SOUNDS = [b"RIFF" + bytes([number]) for number in range(80)]


def dataset(path: Path) -> Any:
    """Pictures, of which one is a file beside the dataset, sounds, classes and texts."""
    path.write_bytes(PICTURES[7])
    stored: list[dict[str, Any]] = [{"bytes": data, "path": None} for data in PICTURES]
    stored[7] = {"bytes": None, "path": str(path)}
    columns = {
        "jpg": stored,
        "wav": [{"bytes": data, "path": "a.wav"} for data in SOUNDS],
        "cls": [number % 2 for number in range(80)],
        "txt": [str(number) for number in range(80)],
    }
    kinds = {"jpg": datasets.Image(), "wav": datasets.Audio(), "cls": datasets.ClassLabel(names=["cat", "dog"])}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(**kinds, txt=datasets.Value("string")))


FORMS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda found: found,
    "torch": lambda found: found.with_format("torch"),
    "numpy": lambda found: found.with_format("numpy"),
    "not decoded": lambda found: found.cast_column("jpg", datasets.Image(decode=False)),
    "chosen rows": lambda found: found.select(range(80)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_files_are_written_as_they_are_stored_and_classes_keep_their_names(
    tmp_path: Path, form: Callable[[Any], Any]
) -> None:
    """In whatever form the dataset returns its columns, and without a word."""
    source, to = form(dataset(tmp_path / "7.jpg")), memory_place()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tdr.shard_dataset(source, to.template(), progress=False)
    members = to.members()
    for number in range(80):
        found = [members[f"{number:09d}.{name}"] for name in ("jpg", "wav", "cls", "txt")]
        assert found == [PICTURES[number], SOUNDS[number], b"%d" % (number % 2), b"%d" % number]
    assert json.loads(to.files()["classes.json"]) == {
        "cat": {"id": 0, "name": "cat"},
        "dog": {"id": 1, "name": "dog"},
    }


@pytest.mark.system
def test_workers_write_files_as_they_are_stored(tmp_path: Path) -> None:
    """The dataset that they are sent decodes nothing."""
    template = f"{tmp_path}/set/{{shard}}.tar"
    tdr.shard_dataset(dataset(tmp_path / "7.jpg"), template, num_workers=2, max_shard_samples=40, progress=False)
    samples = tdr.stream_shards(f"{tmp_path}/set/", shuffle=False)
    assert sorted(sample["jpg"] for sample in samples) == sorted(PICTURES)


def test_one_column_of_several_has_the_names_of_classes() -> None:
    """That which is called ``cls``; without one, a message names them."""
    kinds = {name: datasets.ClassLabel(names=[f"{name}0", f"{name}1"]) for name in ("fine", "coarse")}
    source = datasets.Dataset.from_dict({"fine": [0, 1], "coarse": [1, 0]}, features=datasets.Features(**kinds))
    to = memory_place()
    with pytest.warns(RuntimeWarning, match="The columns fine, coarse have names of classes"):
        tdr.shard_dataset(source, to.template(), progress=False)
    assert "classes.json" not in to.files()
    to = memory_place()
    tdr.shard_dataset(source.rename_column("coarse", "cls"), to.template(), progress=False)
    assert list(json.loads(to.files()["classes.json"])) == ["coarse0", "coarse1"]


class Opened:
    """A map-style dataset of decoded pictures."""

    def __init__(self, make: Callable[[bytes], Image.Image]) -> None:
        self._make = make

    def __len__(self) -> int:
        return len(PICTURES)

    def __getitem__(self, index: int) -> Any:
        return self._make(PICTURES[index]), index % 2


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def halved(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "png": sample["png"].resize((4, 4))}


@pytest.mark.parametrize(
    ("source", "transform", "num_said"),
    [
        (Opened(opened), None, 1),
        (Opened(lambda data: opened(data).convert("RGB")), None, 1),
        (Opened(opened), lambda sample: sample, 1),
        (Opened(opened), halved, 0),
    ],
    ids=["opened", "converted", "passed on", "resized"],
)
def test_pictures_that_are_encoded_again_are_said_once(source: Any, transform: Any, num_said: int) -> None:
    """Not those that a transform has made."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tdr.shard_dataset(source, memory_place().template(), transform=transform, max_shard_samples=9, progress=False)
    assert ["encoded as png" in str(one.message) for one in said] == [True] * num_said


def test_a_dataset_with_a_transform_of_its_own_is_left_to_it(tmp_path: Path) -> None:
    """It gets decoded pictures, which are then encoded: that is said."""
    source = dataset(tmp_path / "7.jpg").remove_columns("wav").with_transform(dict)
    with pytest.warns(RuntimeWarning, match="encoded as jpg"):
        tdr.shard_dataset(source, memory_place().template(), progress=False)


@pytest.mark.parametrize("kind", ["dict", "iterable"])
def test_what_is_no_split_is_refused(tmp_path: Path, kind: str) -> None:
    """A dict of splits, and a dataset that is only iterated."""
    found = dataset(tmp_path / "7.jpg")
    source = datasets.DatasetDict(train=found) if kind == "dict" else found.to_iterable_dataset()
    with pytest.raises(TypeError, match=r"Pass one of its values|For an iterable of samples use write_shards"):
        tdr.shard_dataset(source, memory_place().template(), progress=False)
