"""``RemoteImageFolder``: torchvision's ``ImageFolder`` in a store, with the same images, labels and order."""

from __future__ import annotations

import io
import os
import pickle
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.datasets.stores import AT_ONCE, DEADLINE_S, as_they_are, root_of, timed_store, until_error
from tests.support.shard_places import Place, memory_place
from torchdata_remote import labels
from torchdata_remote.errors import DecodeError, EmptyListingError, LabelError, ObjectNotFoundError, RemoteDataError

# As torchvision.datasets.folder.IMG_EXTENSIONS
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def picture(number: int, mode: str = "RGB", kind: str = "PNG") -> bytes:
    """An image that no other number has."""
    values = np.random.default_rng(number).integers(0, 256, (5 + number % 3, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).convert(mode).save(file, kind)
    return file.getvalue()


TREE = ["b/1.png", "b/10.PNG", "b/2.png", "a/x.png", "a-b/x.png", "a.b/.png", "a b/x.png", "ä/ü.png"]
OTHERS = {"a/readme.txt": b"no image", "a/png": b"", "b/1.png.bak": b"", "b/x.gif": b""}
FILES = {name: picture(number) for number, name in enumerate(TREE)}


def image_folder(root: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes, and samples by their paths below the root, as torchvision's ``ImageFolder`` finds them."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(SUFFIXES):
                    samples.append((os.path.relpath(os.path.join(folder, file), root), number))
    return classes, samples


def check_as_torchvision(dataset: tdr.RemoteImageFolder, root: str, url: str) -> None:
    """All that an ``ImageFolder`` tells; ``root`` has the same files as ``url``."""
    classes, samples = image_folder(root)
    assert dataset.classes == classes
    assert dataset.class_to_idx == {name: number for number, name in enumerate(classes)}
    assert [(path.removeprefix(url), label) for path, label in dataset.samples] == samples
    assert dataset.targets == [label for _, label in samples]
    assert len(dataset) == len(dataset.samples) == len(samples)
    assert dataset.samples[-1] == (url + samples[-1][0], samples[-1][1])
    assert dataset.samples[1:3] == [(url + path, label) for path, label in samples[1:3]]


def opened(data: bytes) -> list[Any]:
    with Image.open(io.BytesIO(data)) as image:
        return pixels(image.convert("RGB"))


def pixels(image: Image.Image) -> list[Any]:
    assert image.mode == "RGB"
    found: list[Any] = np.asarray(image).tolist()
    return found


def plain_items() -> list[tuple[Image.Image, int]]:
    """Of the zoo."""
    names = sorted({name.partition("/")[0] for name in TREE})
    order = sorted(TREE, key=lambda name: name.split("/"))
    return [(Image.open(io.BytesIO(FILES[name])).convert("RGB"), names.index(name.split("/")[0])) for name in order]


@pytest.fixture(scope="module")
def zoo() -> Place:
    place = memory_place()
    place.put(FILES)
    return place


def test_classes_samples_and_pixels_are_those_of_torchvision(place: Place, tmp_path: Path) -> None:
    for location in (place, Place(f"{tmp_path}/reference/")):
        location.put({**FILES, **OTHERS})
    dataset = tdr.RemoteImageFolder(place.url, storage_options=place.options)
    check_as_torchvision(dataset, f"{tmp_path}/reference", root_of(place))
    for number, (image, label) in enumerate(dataset.__getitems__(range(len(dataset)))):
        path, target = dataset.samples[number]
        assert (type(label), label) == (int, target)
        assert pixels(image) == opened(FILES[path.removeprefix(root_of(place))])


NAMES = st.sampled_from(["a", "b", "a-b", "a.b", "a b", "A", "ä", "a0", "-", "!", "a.png", "~", "z"])
IMAGE_NAMES = st.builds(
    "{}{}".format,
    st.sampled_from(["1", "2", "10", "A", "", "x-", "x"]),
    st.sampled_from([".png", ".PNG", ".jpg", ".JPEG", ".Jpg", ".webp", ".tiff", ".pgm", ".gif", ".txt", "png", ""]),
)
TREES = st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=2), IMAGE_NAMES), min_size=1, max_size=25)


@given(tree=TREES, nested=st.booleans())
def test_any_tree_has_the_order_and_labels_of_torchvision(tree: list[tuple[str, list[str], str]], nested: bool) -> None:
    """Nested trees with classes by the first directory."""
    with tempfile.TemporaryDirectory() as root:
        for top, between, name in [*tree, *((top, [], "0.png") for top, _, _ in tree)]:
            path = Path(root, top, *(f"{folder}.d" for folder in between if nested), name or "none")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.touch()
        classes = labels.from_pattern("^([^/]+)/") if nested else None
        check_as_torchvision(tdr.RemoteImageFolder(root, classes=classes), root, f"file://{root}/")


def test_classes_of_nested_folders_are_the_parent_directories() -> None:
    place = memory_place()
    place.put(dict.fromkeys(("train/dog/1.png", "val/cat/1.png", "more/2.png", "val/dog/2.png"), b""))
    dataset = tdr.RemoteImageFolder(place.url)
    assert dataset.classes == ["cat", "dog", "more"]
    assert [label for _, label in dataset.samples] == [2, 1, 0, 1]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *((mode, "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")),
        *(("RGB", kind) for kind in ("JPEG", "WEBP", "BMP", "TIFF", "PPM")),
    ],
)
def test_images_of_every_mode_and_format_of_torchvision_become_rgb(mode: str, kind: str) -> None:
    data, place = picture(3, mode, kind), memory_place()
    place.put({f"a/1.{kind.lower()}": data})
    found = np.array(pixels(tdr.RemoteImageFolder(place.url)[0][0]), np.int16)
    assert np.abs(found - np.array(opened(data), np.int16)).max() <= (8 if kind == "JPEG" else 0)


def test_transform_and_target_transform_are_applied_also_if_they_are_set_later(zoo: Place) -> None:
    dataset = tdr.RemoteImageFolder(zoo.url, transform=lambda image: image.size, target_transform=lambda label: -label)
    assert dataset.__getitems__(range(len(TREE))) == [(image.size, -label) for image, label in plain_items()]
    dataset.transform = None
    dataset.target_transform = str
    image, label = dataset[0]
    assert (image.mode, label) == ("RGB", "0")


def test_transforms_run_in_the_order_of_the_batch_in_the_callers_thread_on_separate_images(zoo: Place) -> None:
    seen: list[Any] = []

    def paint(image: Image.Image) -> Image.Image:
        seen.append((image.getpixel((0, 0)), threading.current_thread()))
        image.putpixel((0, 0), (1, 2, 3))
        return image

    order = [5, 0, 5, 3, 5]
    tdr.RemoteImageFolder(zoo.url, transform=paint).__getitems__(order)
    items = plain_items()
    assert seen == [(items[index][0].getpixel((0, 0)), threading.current_thread()) for index in order]


def test_images_are_decoded_in_threads_while_others_are_fetched() -> None:
    """The first one is decoded before the fourth one is answered; at most one at a time for each processor."""
    began, answered, decoding = threading.Event(), threading.Event(), set()

    def hold(key: str) -> None:
        if key == "3.png":
            assert began.wait(DEADLINE_S)
            answered.set()

    def decode(data: bytes) -> int:
        decoding.add(threading.current_thread())
        if data == b"0":
            began.set()
            assert answered.wait(DEADLINE_S)
        return int(data)

    objects = {f"{number}.png": b"%d" % number for number in range(8)}
    with timed_store(objects, hold) as store:
        dataset = tdr.RemoteImageFolder(
            store.url, storage_options=store.options, decoder=decode, max_in_flight=4, retry=AT_ONCE
        )
        assert dataset.__getitems__(range(8)) == [(number, -1) for number in range(8)]
    assert threading.current_thread() not in decoding
    assert 1 <= len(decoding) <= len(os.sched_getaffinity(0))


def test_a_damaged_image_is_a_decode_error_with_its_url_after_the_batches_before_it(place: Place) -> None:
    place.put({**FILES, "b/10.PNG": b"this is no image"})
    url = f"{root_of(place)}b/10.PNG"
    dataset = tdr.RemoteImageFolder(place.url, storage_options=place.options)
    bad = [path for path, _ in dataset.samples].index(url)
    with pytest.raises(DecodeError, match=re.escape(url) + r".*its 16 bytes cannot be decoded") as caught:
        dataset.__getitems__(range(len(dataset)))
    assert caught.value.url == url
    assert isinstance(caught.value.__cause__, OSError)
    assert pixels(dataset[bad - 1][0]) == opened(FILES["b/1.png"])
    if not place.url.startswith("memory"):
        dataset.transform = np.asarray
        found, error = until_error(
            DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=as_they_are), DecodeError
        )
        assert len(found) == bad // 2
        assert url in str(error)


def test_on_error_returns_the_whole_item_and_a_batch_is_never_shorter() -> None:
    place = memory_place()
    place.put({**FILES, "b/10.PNG": b"this is no image"})
    seen: list[RemoteDataError] = []

    def instead(error: RemoteDataError) -> tuple[str, int]:
        seen.append(error)
        return "gray", -1

    dataset = tdr.RemoteImageFolder(place.url, on_error=instead, transform=lambda image: "sound", retry=AT_ONCE)
    found = dataset.__getitems__(range(len(dataset)))
    assert [image for image, _ in found].count("gray") == 1
    assert found[[path for path, _ in dataset.samples].index(f"{place.url}b/10.PNG")] == ("gray", -1)
    place.delete("a/x.png")
    assert dataset.__getitems__([0, 1, 2, 3]).count(("gray", -1)) == 1
    assert [type(error) for error in seen] == [DecodeError, ObjectNotFoundError]
    place.put({"a/x.png": FILES["a/x.png"]})
    raising = tdr.RemoteImageFolder(place.url, on_error=lambda error: None)
    with pytest.raises(DecodeError, match=r"b/10\.PNG"):
        raising.__getitems__(range(len(raising)))


def test_exceptions_of_transforms_are_unchanged_and_not_given_to_on_error(zoo: Place) -> None:
    dataset = tdr.RemoteImageFolder(zoo.url, transform=lambda image: 1 // 0, on_error=lambda error: "instead")
    with pytest.raises(ZeroDivisionError):
        dataset[0]


# Classes


def test_images_in_the_folder_itself_have_the_label_minus_1() -> None:
    place = memory_place()
    place.put({f"{number}.png": picture(number) for number in range(3)})
    dataset = tdr.RemoteImageFolder(place.url)
    assert (dataset.classes, dataset.class_to_idx, dataset.targets) == ([], {}, [-1, -1, -1])
    assert dataset[2][1] == -1


@pytest.mark.parametrize("classes", [None, ["cat"], {"cat": 3}])
def test_an_image_without_a_parent_directory_beside_classes_is_an_error_that_names_it(classes: Any) -> None:
    place = memory_place()
    place.put({"cat/1.png": b"", "stray.png": b""})
    with pytest.raises(LabelError, match=r"stray\.png"):
        tdr.RemoteImageFolder(place.url, classes=classes)


@pytest.fixture(scope="module")
def animals() -> str:
    """Two each: ant, cat, dog."""
    return memory_place().put({f"{name}/{n}.png": b"" for name in ("cat", "dog", "ant") for n in range(2)})


KEYS = {"cat": {"id": 1, "name": "Felis"}, "dog": {"id": 2, "name": "Canis"}, "ant": {"id": 4, "name": "Formica"}}


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
        (lambda path: path[0], [0, 0, 1, 1, 2, 2], ["a", "c", "d"]),
        (lambda path: len(path) - 9, [0] * 6, ["0"]),
        (lambda path: np.int64(2), [2] * 6, ["0", "1", "2"]),
    ],
)
def test_classes_determines_labels_and_names(animals: str, classes: Any, targets: list[int], names: list[str]) -> None:
    dataset = tdr.RemoteImageFolder(animals, classes=classes)
    assert dataset.targets == targets
    assert dataset.classes == names
    assert all(dataset.class_to_idx[name] == label for label, name in enumerate(names) if not name.isdigit())


@pytest.mark.parametrize(
    ("classes", "kind", "message"),
    [
        (["cat", "dog"], LabelError, r"ant/0\.png.*'ant'.*none of the 2 classes cat, dog"),
        ({"cat": 0}, LabelError, "none of the 1 classes"),
        (["cat", "dog", "cat"], ValueError, "more than once"),
        ({"cat": -1, "dog": 0, "ant": 1}, ValueError, "-1"),
        ({"cat": "1", "dog": 0, "ant": 1}, ValueError, "'cat': '1'"),
        ("cat", TypeError, "classes must be"),
        (lambda path: None, LabelError, r"ant/0\.png"),
        (lambda path: path[99], LabelError, r"ant/0\.png.*IndexError"),
        (lambda path: path[0] if path[0] == "a" else 1, LabelError, r"cat/0\.png"),
        (lambda path: 2**31, LabelError, r"ant/0\.png"),
    ],
)
def test_classes_that_do_not_fit_are_an_error(animals: str, classes: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        tdr.RemoteImageFolder(animals, classes=classes)


def test_large_labels_make_no_list_of_classes(animals: str) -> None:
    assert tdr.RemoteImageFolder(animals, classes=lambda path: 2**31 - 1).targets == [2**31 - 1] * 6


@pytest.mark.parametrize("limit", [1, 3, 5, 6, 7, 100])
def test_limit_does_not_change_labels_and_classes_so_that_a_model_still_fits(animals: str, limit: int) -> None:
    dataset, whole = tdr.RemoteImageFolder(animals, limit=limit), tdr.RemoteImageFolder(animals)
    assert len(dataset) == min(limit, 6)
    assert list(dataset.samples) == whole.samples[:limit]
    assert dataset.targets == whole.targets[:limit]
    assert dataset.classes == whole.classes == ["ant", "cat", "dog"]


def test_a_folder_without_images_is_an_error_that_names_it_and_the_extensions(place: Place) -> None:
    place.put(OTHERS)
    with pytest.raises(EmptyListingError, match=re.escape(place.url) + r".*\.jpg.*\.webp"):
        tdr.RemoteImageFolder(place.url, storage_options=place.options)


def test_a_pickle_keeps_labels_in_less_than_200_bytes_an_image() -> None:
    place = memory_place()
    place.put({f"n{n % 10:08d}/n{n % 10:08d}_{n:05d}.JPEG": b"" for n in range(1000)})
    dataset = tdr.RemoteImageFolder(place.url)
    data = pickle.dumps(dataset)
    assert len(data) < 200 * len(dataset)
    again = pickle.loads(data)
    for name in ("targets", "classes", "class_to_idx"):
        assert getattr(again, name) == getattr(dataset, name)
    assert list(again.samples) == list(dataset.samples)


def test_an_index_replaces_the_listing_with_the_same_order_and_labels(zoo: Place) -> None:
    listed, names = tdr.RemoteImageFolder(zoo.url), [*reversed(TREE), "a/readme.txt"]
    dataset = tdr.RemoteImageFolder(zoo.url, index=[f"{zoo.url}{name}" for name in names])
    assert list(dataset.samples) == list(listed.samples)
    assert dataset.classes == listed.classes
    assert [pixels(dataset[n][0]) for n in (0, 7)] == [pixels(listed[n][0]) for n in (0, 7)]
    with pytest.raises(EmptyListingError, match="there is no file"):
        tdr.RemoteImageFolder(zoo.url, index=[f"{zoo.url}a/readme.txt"])
