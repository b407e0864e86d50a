"""``shard_dataset`` of datasets of the package ``datasets``, and of others that return decoded pictures.

A stand-in for the package: it needs dill, with which torch pickles lambdas, so that other tests would see other errors.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import torchdata_remote as tdr
from tests.support.shard_places import memory_place


@dataclass
class File:
    """A feature of the stand-in: a file, and how it is decoded."""

    decoded: Callable[[bytes], Any]
    decode: bool = True
    pa_type: str = field(default="struct<bytes: binary, path: string>", init=False)


@dataclass
class ClassLabel:
    """A feature of the stand-in: numbers of classes."""

    names: list[str]

    def int2str(self, number: int) -> str:
        return self.names[number]


class Dataset:
    """A stand-in for ``datasets.Dataset``, with what ``shard_dataset`` may use of it."""

    format = MappingProxyType({"type": None})

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self._columns, self.features = columns, features

    def cast_column(self, name: str, feature: Any) -> Dataset:
        return Dataset(self._columns, {**self.features, name: feature})

    def __len__(self) -> int:
        return len(self._columns["cls"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = {name: values[index] for name, values in self._columns.items()}
        for name, feature in self.features.items():
            if isinstance(feature, File) and feature.decode:
                item[name] = feature.decoded(item[name]["bytes"] or Path(item[name]["path"]).read_bytes())
        return item


def picture(number: int, form: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    pixels = np.frombuffer(hashlib.sha512(bytes([number])).digest() * 3, np.uint8).reshape(8, 8, 3)
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


PICTURES = [picture(number, "PNG" if number % 3 == 0 else "JPEG") for number in range(80)]
SOUNDS = [b"RIFF" + bytes([number]) for number in range(80)]


def test_files_are_written_as_they_are_stored_and_classes_keep_their_names(tmp_path: Path) -> None:
    """Pictures, of which one is a file beside the dataset, sounds, classes and texts; without a word."""
    (tmp_path / "7.jpg").write_bytes(PICTURES[7])
    stored: list[dict[str, Any]] = [{"bytes": data, "path": None} for data in PICTURES]
    stored[7] = {"bytes": None, "path": f"{tmp_path}/7.jpg"}
    columns: dict[str, list[Any]] = {
        "jpg": stored,
        "wav": [{"bytes": data, "path": "a.wav"} for data in SOUNDS],
        "cls": [number % 2 for number in range(80)],
        "txt": [str(number) for number in range(80)],
    }
    kinds = {"jpg": File(opened), "wav": File(len), "cls": ClassLabel(["cat", "dog"]), "txt": object()}
    source, to = Dataset(columns, kinds), memory_place()
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


def test_one_column_of_several_has_the_names_of_classes() -> None:
    """That which is called ``cls``; without one, a message names them."""
    columns = {"cls": [0, 1], "coarse": [1, 0]}
    kinds = {"fine": ClassLabel(["fine0", "fine1"]), "coarse": ClassLabel(["coarse0", "coarse1"])}
    to = memory_place()
    with pytest.warns(RuntimeWarning, match="The columns fine, coarse have names of classes"):
        tdr.shard_dataset(Dataset(columns, kinds), to.template(), progress=False)
    assert "classes.json" not in to.files()
    to = memory_place()
    kinds["cls"] = kinds.pop("fine")
    tdr.shard_dataset(Dataset(columns, kinds), to.template(), progress=False)
    assert list(json.loads(to.files()["classes.json"])) == ["fine0", "fine1"]


class Opened:
    """A map-style dataset of decoded pictures."""

    def __init__(self, make: Callable[[bytes], Image.Image]) -> None:
        self._make = make

    def __len__(self) -> int:
        return len(PICTURES)

    def __getitem__(self, index: int) -> Any:
        return self._make(PICTURES[index]), index % 2


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


def test_dicts_of_other_datasets_are_no_files(tmp_path: Path) -> None:
    """A path in somebody's annotations is not read."""
    (tmp_path / "secret").write_text("secret")
    rows: list[dict[str, Any]] = [
        {"path": "cat/1.jpg", "bytes": 1234},
        {"path": str(tmp_path / "secret"), "bytes": None},
    ]
    place = memory_place()
    tdr.shard_dataset([{"json": row} for row in rows], f"{place.url}{{shard}}.tar")
    found = [sample["json"] for sample in tdr.stream_shards(place.url, shuffle=False).decode_sample()]
    assert sorted(found, key=lambda row: str(row["path"])) == sorted(rows, key=lambda row: str(row["path"]))
