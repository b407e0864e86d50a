"""torchvision's ``ImageFolder`` in a store: the same images, labels and order."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from tests.datasets.stores import AT_ONCE, DEADLINE_S, Plain, as_they_are, timed_store, until_error
from tests.servers.s3 import S3Server
from tests.support.shard_places import Place, memory_place
from torchdata_remote import labels
from torchdata_remote.datasets import RemoteImageFolder
from torchdata_remote.errors import DecodeError, EmptyListingError, LabelError, ObjectNotFoundError, RemoteDataError
from torchdata_remote.formats.images import IMAGE_FOLDER_SUFFIXES


def picture(number: int, mode: str = "RGB", kind: str = "PNG") -> bytes:
    """An image that no other number has."""
    values = np.random.default_rng(number).integers(0, 256, (5 + number % 3, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).convert(mode).save(file, kind)
    return file.getvalue()


TREE = ["b/1.png", "b/10.PNG", "b/2.png", "a/x.png", "a-b/x.png", "a.b/.png", "a b/x.png", "ä/ü.png"]
OTHERS = {"a/readme.txt": b"no image", "README": b"none either", "a/png": b"", "b/1.png.bak": b"", "b/x.gif": b""}
FILES = {name: picture(number) for number, name in enumerate(TREE)}


def image_folder(root: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes, and samples by their paths below the root, as torchvision's ``ImageFolder`` finds them."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(IMAGE_FOLDER_SUFFIXES):
                    samples.append((os.path.relpath(os.path.join(folder, file), root), number))
    return classes, samples


def check_as_torchvision(dataset: RemoteImageFolder, root: str, url: str) -> None:
    """All that an ``ImageFolder`` tells; ``root`` has the same files as ``url``."""
    classes, samples = image_folder(root)
    assert dataset.classes == classes
    assert dataset.class_to_idx == {name: number for number, name in enumerate(classes)}
    assert [(path.removeprefix(url), label) for path, label in dataset.samples] == samples
    assert dataset.targets == [label for _, label in samples]
    assert len(dataset) == len(dataset.samples) == len(samples)
    for index in {0, len(samples) - 1, -1}:
        assert dataset.samples[index] == (url + samples[index][0], samples[index][1])
    assert dataset.samples[1:3] == [(url + path, label) for path, label in samples[1:3]]


def pixels(image: Image.Image) -> list[Any]:
    assert image.mode == "RGB"
    found: list[Any] = np.asarray(image).tolist()
    return found


def opened(data: bytes) -> list[Any]:
    with Image.open(io.BytesIO(data)) as image:
        return pixels(image.convert("RGB"))


@pytest.fixture(scope="module")
def zoo() -> Place:
    place = memory_place()
    place.put(FILES)
    return place


@pytest.fixture(scope="module")
def zoo_on_s3(moto: S3Server) -> Place:
    place = Place(f"s3://{moto.new_bucket()}/zoo/", moto)
    place.put(FILES)
    return place


def plain_items(place: Place) -> list[tuple[Image.Image, int]]:
    """Of the zoo."""
    names = sorted({name.partition("/")[0] for name in TREE})
    order = sorted(TREE, key=lambda name: name.split("/"))
    return [
        (Image.fromarray(np.array(opened(FILES[name]), np.uint8)), names.index(name.split("/")[0])) for name in order
    ]


def test_classes_samples_and_pixels_equal_torchvision(place: Place, tmp_path: Path) -> None:
    """Order and targets too, from any store."""
    for location in (place, Place(f"{tmp_path}/reference/")):
        location.put({**FILES, **{name: data for name, data in OTHERS.items() if "/" in name}})
    dataset = RemoteImageFolder(place.url, storage_options=place.options)
    root = place.url if "://" in place.url else f"file://{place.url}"
    check_as_torchvision(dataset, f"{tmp_path}/reference", root)
    for number, (image, label) in enumerate(dataset.__getitems__(range(len(dataset)))):
        path, target = dataset.samples[number]
        assert label == target
        assert type(label) is int
        assert pixels(image) == opened(FILES[path.removeprefix(root)])


NAMES = st.sampled_from(["a", "b", "a-b", "a.b", "a b", "A", "ä", "a0", "-", "!", "a.png", "~", "z"])
IMAGE_NAMES = st.builds("{}{}".format, st.sampled_from(["1", "2", "10", "A", "", "x-", "x"]), st.sampled_from(
    [".png", ".PNG", ".jpg", ".JPEG", ".Jpg", ".webp", ".tiff", ".gif", ".txt", "png", ""]
))  # fmt: skip
TREES = st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=2), IMAGE_NAMES), min_size=1, max_size=25)


@settings(max_examples=60)
@given(tree=TREES, nested=st.booleans())
def test_any_tree_equals_torchvision(tree: list[tuple[str, list[str], str]], nested: bool) -> None:
    """For any names; nested trees with classes by the first directory."""
    with tempfile.TemporaryDirectory() as root:
        for top, between, name in [*tree, *((top, [], "0.png") for top, _, _ in tree)]:
            path = Path(root, top, *(f"{folder}.d" for folder in between if nested), name or "none")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.touch()
        classes = labels.from_pattern("^([^/]+)/") if nested else None
        check_as_torchvision(RemoteImageFolder(root, classes=classes), root, f"file://{root}/")


def test_classes_of_nested_folders_are_the_parent_directories(memory_folder: str) -> None:
    """At any depth."""
    place = Place(f"{memory_folder}/")
    place.put(dict.fromkeys(("train/dog/1.png", "val/cat/1.png", "more/2.png", "val/dog/2.png"), b""))
    dataset = RemoteImageFolder(place.url)
    assert dataset.classes == ["cat", "dog", "more"]
    assert [(url.removeprefix(place.url), label) for url, label in dataset.samples] == [
        ("more/2.png", 2),
        ("train/dog/1.png", 1),
        ("val/cat/1.png", 0),
        ("val/dog/2.png", 1),
    ]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_images_of_every_mode_become_rgb(memory_folder: str, mode: str) -> None:
    """As by torchvision's loader."""
    data = picture(3, mode)
    Place(f"{memory_folder}/").put({"a/1.png": data})
    assert pixels(RemoteImageFolder(memory_folder)[0][0]) == opened(data)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "BMP", "TIFF", "PPM"])
def test_every_format_of_torchvision_is_read(memory_folder: str, kind: str) -> None:
    """A JPEG may be decoded by another library."""
    data = picture(3, "RGB", kind)
    Place(f"{memory_folder}/").put({f"a/1.{kind.lower()}": data})
    found = np.array(pixels(RemoteImageFolder(memory_folder)[0][0]), np.int16)
    assert np.abs(found - np.array(opened(data), np.int16)).max() <= (8 if kind == "JPEG" else 0)


def test_transform_and_target_transform_are_applied(zoo: Place) -> None:
    """Also if they are set later."""
    dataset = RemoteImageFolder(zoo.url, transform=lambda image: image.size, target_transform=lambda label: -label)
    plain = [(image.size, -label) for image, label in plain_items(zoo)]
    assert dataset.__getitems__(range(len(TREE))) == plain
    dataset.transform = None
    dataset.target_transform = str
    image, label = dataset[0]
    assert (image.mode, label) == ("RGB", "0")


class Jitter:
    """Draws from all three generators."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        drawn = [torch.rand(1).item(), random.random(), np.random.rand()]  # as transforms do
        return torch.tensor([*drawn, *np.asarray(image)[0, 0].tolist()], dtype=torch.float64)


class JitterItem:
    """The same for an item of a plain dataset."""

    def __call__(self, item: tuple[Image.Image, int]) -> tuple[torch.Tensor, int]:
        return Jitter()(item[0]), item[1]


def seed_all() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def batches_of(dataset: Any, num_workers: int, start_method: str, num_epochs: int) -> list[Any]:
    seed_all()
    loader = DataLoader(
        dataset,
        batch_size=3,
        shuffle=True,
        num_workers=num_workers,
        multiprocessing_context=start_method if num_workers else None,
    )
    return [(images.tolist(), targets.tolist()) for _ in range(num_epochs) for images, targets in loader]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_random_transforms_are_those_of_a_plain_dataset(zoo_on_s3: Place, num_workers: int) -> None:
    """With the same seeds the same numbers for the same images, in each worker."""
    check_random_transforms(zoo_on_s3, num_workers, "fork", 2)


def test_random_transforms_in_workers_that_are_not_forked(zoo_on_s3: Place) -> None:
    """Transforms, labels and options are pickled for each worker."""
    check_random_transforms(zoo_on_s3, 2, "forkserver", 1)


def check_random_transforms(place: Place, num_workers: int, start_method: str, num_epochs: int) -> None:
    dataset = RemoteImageFolder(place.url, transform=Jitter(), storage_options=place.options)
    plain = Plain(plain_items(place), JitterItem())
    found = batches_of(dataset, num_workers, start_method, num_epochs)
    assert found == batches_of(plain, num_workers, "fork", num_epochs)


def test_transforms_run_in_the_order_of_the_batch(zoo: Place) -> None:
    """A repeated image is a separate object, so in-place transforms do not interfere."""
    seen: list[tuple[int, int]] = []

    def paint(image: Image.Image) -> Image.Image:
        before = image.getpixel((0, 0))
        image.putpixel((0, 0), (1, 2, 3))
        seen.append(before)  # type: ignore[arg-type]
        return image

    dataset = RemoteImageFolder(zoo.url, transform=paint)
    order = [5, 0, 5, 3, 5]
    dataset.__getitems__(order)
    assert seen == [tuple(pixels(plain_items(zoo)[index][0])[0][0]) for index in order]


def test_images_are_decoded_while_others_are_fetched() -> None:
    """The first one is decoded before the fourth one is answered."""
    began, answered = threading.Event(), threading.Event()

    def hold(key: str) -> None:
        if key == "3.png":
            assert began.wait(DEADLINE_S)
            answered.set()

    def decode(data: bytes) -> int:
        if data == b"0":
            began.set()
            assert answered.wait(DEADLINE_S)
        return int(data)

    objects = {f"{number}.png": b"%d" % number for number in range(8)}
    with timed_store(objects, hold) as store:
        dataset = RemoteImageFolder(
            store.url, storage_options=store.options, decoder=decode, max_in_flight=4, retry=AT_ONCE
        )
        assert dataset.__getitems__(range(8)) == [(number, -1) for number in range(8)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_images_are_decoded_in_threads(zoo: Place) -> None:
    """Never in the caller's thread; at most one per processor."""
    together, decoding = threading.Barrier(2), set()

    def decode(data: bytes) -> int:
        decoding.add(threading.current_thread())
        together.wait(DEADLINE_S)
        return len(data)

    assert len(RemoteImageFolder(zoo.url, decoder=decode).__getitems__(range(8))) == 8
    assert threading.current_thread() not in decoding
    assert 2 <= len(decoding) <= len(os.sched_getaffinity(0))


@pytest.fixture
def damaged(place: Place) -> tuple[Place, str]:
    """The zoo in any store, with an image that is none; and its URL."""
    place.put({**FILES, "b/10.PNG": b"this is no image"})
    return place, f"{place.url if '://' in place.url else 'file://' + place.url}b/10.PNG"


def test_damaged_image_is_a_decode_error(damaged: tuple[Place, str]) -> None:
    """With the URL; other items can be read."""
    place, url = damaged
    dataset = RemoteImageFolder(place.url, storage_options=place.options)
    bad = [path for path, _ in dataset.samples].index(url)
    with pytest.raises(DecodeError, match=r"its 16 bytes cannot be decoded") as caught:
        dataset.__getitems__(range(len(dataset)))
    assert caught.value.url == url
    assert url in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert pixels(dataset[bad - 1][0]) == opened(FILES["b/1.png"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damaged_image_in_a_loader_is_a_decode_error(moto: S3Server, num_workers: int) -> None:
    """After the batches before it, also from a worker."""
    place = Place(f"s3://{moto.new_bucket()}/", moto)
    place.put({**FILES, "b/10.PNG": FILES["b/10.PNG"][:60]})
    dataset = RemoteImageFolder(place.url, storage_options=moto.storage_options, transform=np.asarray)
    bad = [path.endswith("b/10.PNG") for path, _ in dataset.samples].index(True)
    found, error = until_error(
        DataLoader(dataset, batch_size=2, num_workers=num_workers, collate_fn=as_they_are), DecodeError
    )
    assert len(found) == bad // 2
    assert f"{place.url}b/10.PNG" in str(error)


def test_on_error_returns_the_complete_item(damaged: tuple[Place, str]) -> None:
    """With its label; the transform is not called."""
    place, url = damaged
    seen: list[RemoteDataError] = []

    def instead(error: RemoteDataError) -> tuple[str, int]:
        seen.append(error)
        return "gray", -1

    dataset = RemoteImageFolder(
        place.url, storage_options=place.options, on_error=instead, transform=lambda image: "sound", retry=AT_ONCE
    )
    found = dataset.__getitems__(range(len(dataset)))
    assert [image for image, _ in found].count("gray") == 1
    assert found[[path for path, _ in dataset.samples].index(url)] == ("gray", -1)
    place.delete("a/x.png")
    assert dataset.__getitems__([0, 1, 2, 3]).count(("gray", -1)) == 1
    assert [type(error) for error in seen] == [DecodeError, ObjectNotFoundError]


def test_on_error_that_returns_none_raises_the_error(damaged: tuple[Place, str]) -> None:
    """A batch is never shorter."""
    place, url = damaged
    dataset = RemoteImageFolder(place.url, storage_options=place.options, on_error=lambda error: None)
    with pytest.raises(DecodeError, match=re.escape(url)):
        dataset.__getitems__(range(len(dataset)))


def test_exceptions_of_transforms_are_unchanged(zoo: Place) -> None:
    """They are no ``DecodeError``, and ``on_error`` is not called."""

    def fail(image: Image.Image) -> None:
        raise ZeroDivisionError("mine")

    dataset = RemoteImageFolder(zoo.url, transform=fail, on_error=lambda error: "instead")
    with pytest.raises(ZeroDivisionError, match="mine"):
        dataset[0]


def test_images_in_the_folder_itself_have_label_minus_1(memory_folder: str) -> None:
    """As in a test set."""
    place = Place(f"{memory_folder}/")
    place.put({f"{number}.png": picture(number) for number in range(3)})
    dataset = RemoteImageFolder(place.url)
    assert (dataset.classes, dataset.class_to_idx, dataset.targets) == ([], {}, [-1, -1, -1])
    assert dataset[2][1] == -1


@pytest.mark.parametrize("classes", [None, ["cat"], {"cat": 3}])
def test_image_without_a_parent_directory_beside_classes_is_an_error(memory_folder: str, classes: Any) -> None:
    """It names the image."""
    Place(f"{memory_folder}/").put({"cat/1.png": b"", "stray.png": b""})
    with pytest.raises(LabelError, match=r"stray\.png"):
        RemoteImageFolder(memory_folder, classes=classes)


ANIMALS = {f"{name}/{number}.png": b"" for name in ("cat", "dog", "ant") for number in range(2)}  # 2 each, sorted: ant


@pytest.fixture
def animals(memory_folder: str) -> str:
    Place(f"{memory_folder}/").put(ANIMALS)
    return memory_folder


def first_letter(path: str) -> str:
    """A labeller."""
    return path[0]


KEYS = {"cat": {"id": 1, "name": "Felis"}, "dog": {"id": 2, "name": "Canis"}, "ant": {"id": 4, "name": "Formica"}}
SYNSETS = [
    {"ILSVRC2012_ID": number, "WNID": name, "words": name.upper(), "num_children": 0}
    for number, name in enumerate(("dog", "cat", "ant"), start=1)
]


@pytest.mark.parametrize(
    ("classes", "targets", "names"),
    [
        (None, [0, 0, 1, 1, 2, 2], ["ant", "cat", "dog"]),
        (["dog", "cat", "ant", "elk"], [2, 2, 1, 1, 0, 0], ["dog", "cat", "ant", "elk"]),
        (("dog", "cat", "ant"), [2, 2, 1, 1, 0, 0], ["dog", "cat", "ant"]),
        ({"dog": 7, "cat": 0, "ant": 7}, [7, 7, 0, 0, 7, 7], ["cat", *"123456", "ant"]),
        (labels.parent_directory(), [0, 0, 1, 1, 2, 2], ["ant", "cat", "dog"]),
        (labels.from_pattern(r"([0-9])\.png$"), [0, 1, 0, 1, 0, 1], ["0", "1"]),
        (labels.classes_json(KEYS, id_base=1), [3, 3, 0, 0, 1, 1], ["cat", "dog", "2", "ant"]),
        (labels.meta_mat(SYNSETS), [2, 2, 1, 1, 0, 0], ["dog", "cat", "ant"]),
        (first_letter, [0, 0, 1, 1, 2, 2], ["a", "c", "d"]),
        (lambda path: len(path) - 9, [0] * 6, ["0"]),
        (lambda path: np.int64(2), [2] * 6, ["0", "1", "2"]),
    ],
)
def test_classes_argument_determines_labels_and_names(
    animals: str, classes: Any, targets: list[int], names: list[str]
) -> None:
    """Of any form; a label without a class is named by its number."""
    dataset = RemoteImageFolder(animals, classes=classes)
    assert dataset.targets == targets
    assert dataset.classes == names
    assert all(dataset.class_to_idx[name] == label for label, name in enumerate(names) if not name.isdigit())


def test_class_files_label_validation_sets(memory_folder: str) -> None:
    """By the number in the image's name."""
    Place(f"{memory_folder}/").put({f"ILSVRC2012_val_0000000{number}.JPEG": b"" for number in (1, 2, 3)})
    by_number = labels.by_number({"0": 5, "1": 3, "2": 5}, number_base=0, id_base=1)
    truth = labels.ground_truth([5, 3, 5], base_name="ILSVRC2012_val_")
    for labeller in (by_number, truth):
        dataset = RemoteImageFolder(memory_folder, classes=labeller)
        assert dataset.targets == [4, 2, 4]
        assert dataset.classes == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("classes", "kind", "message"),
    [
        (["cat", "dog"], LabelError, r"ant/0\.png.*'ant'.*none of the 2 classes cat, dog"),
        ({"cat": 0}, LabelError, "none of the 1 classes"),
        (["cat", "dog", "cat"], ValueError, "more than once"),
        ({"cat": -1, "dog": 0, "ant": 1}, ValueError, "-1"),
        ({"cat": "1", "dog": 0, "ant": 1}, TypeError, "'cat': '1'"),
        ({"cat": 0.5, "dog": 0, "ant": 1}, TypeError, "0.5"),
        ("cat", TypeError, "classes must be"),
        ({"cat", "dog"}, TypeError, "classes must be"),
        (lambda path: None, LabelError, r"ant/0\.png"),
        (lambda path: path[99], LabelError, r"ant/0\.png.*IndexError"),
        (lambda path: path[0] if path[0] == "a" else 1, LabelError, r"cat/0\.png"),
        (lambda path: 2**31, LabelError, r"ant/0\.png"),
    ],
)
def test_classes_that_do_not_fit_are_an_error(animals: str, classes: Any, kind: type[Exception], message: str) -> None:
    """It names the file and what was expected."""
    with pytest.raises(kind, match=message):
        RemoteImageFolder(animals, classes=classes)


def test_large_labels_allocate_no_list_of_classes(animals: str) -> None:
    """Unless ``classes`` is accessed."""
    assert RemoteImageFolder(animals, classes=lambda path: 2**31 - 1).targets == [2**31 - 1] * 6


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_limit_does_not_change_labels_and_classes(animals: str, limit: int) -> None:
    """So a model still fits."""
    dataset, whole = RemoteImageFolder(animals, limit=limit), RemoteImageFolder(animals)
    assert len(dataset) == min(limit, 6)
    assert list(dataset.samples) == whole.samples[:limit]
    assert dataset.targets == whole.targets[:limit]
    assert dataset.classes == whole.classes == ["ant", "cat", "dog"]


def test_folder_without_images_is_an_error(place: Place) -> None:
    """It names the folder and the extensions."""
    place.put(OTHERS)
    with pytest.raises(EmptyListingError, match=re.escape(place.url) + r".*\.jpg.*\.webp"):
        RemoteImageFolder(place.url, storage_options=place.options)


def test_pickle_is_less_than_200_bytes_per_image() -> None:
    """Including labels."""
    place = memory_place()
    place.put({f"n{number % 10:08d}/n{number % 10:08d}_{number:05d}.JPEG": b"" for number in range(1000)})
    dataset = RemoteImageFolder(place.url)
    assert len(dataset.classes) == 10
    data = pickle.dumps(dataset)
    assert len(data) < 200 * len(dataset)
    again = pickle.loads(data)
    assert (again.targets, again.classes, list(again.samples)) == (
        dataset.targets,
        dataset.classes,
        list(dataset.samples),
    )


def test_index_replaces_the_listing(zoo_on_s3: Place, moto: S3Server) -> None:
    """Other files are dropped; order and labels are those of the listing."""
    folder = zoo_on_s3.url.split("/", 3)[3]
    listed = RemoteImageFolder(zoo_on_s3.url, storage_options=moto.storage_options)
    keys = [f"{folder}{name}" for name in [*reversed(TREE), "a/readme.txt"]]
    dataset = RemoteImageFolder(zoo_on_s3.url, index=keys, storage_options=moto.storage_options)
    assert list(dataset.samples) == list(listed.samples)
    assert dataset.classes == listed.classes
    assert [pixels(image) for image, _ in dataset.__getitems__([0, 7])] == [
        pixels(image) for image, _ in listed.__getitems__([0, 7])
    ]
    with pytest.raises(EmptyListingError, match="there is no file"):
        RemoteImageFolder(zoo_on_s3.url, index=[f"{folder}a/readme.txt"], storage_options=moto.storage_options)


def test_index_out_of_range_is_raised_after_the_batches_before_it(zoo: Place) -> None:
    """However far ahead images are fetched and decoded."""
    dataset = RemoteImageFolder(zoo.url, transform=lambda image: image.size)
    items = [(image.size, label) for image, label in plain_items(zoo)]
    batches = dataset.batches([[0], [1, 2], [3, 99], [4]])
    assert [next(batches), next(batches)] == [items[:1], items[1:3]]
    with pytest.raises(IndexError, match="99"):
        next(batches)
