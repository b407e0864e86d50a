"""What the service's page shows of a dataset: its summary, code that reads it, and a sheet of its pictures."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.servers.service import Service
from tests.support.archive_bytes import pack_tar
from tests.support.service_clients import ask
from torchdata_remote import ShardWriter

COLOURS = [(200, 30, 30), (30, 160, 40), (40, 60, 210), (200, 180, 20), (130, 40, 160), (30, 170, 180)]


def picture(number: int, kind: str = "PNG", size: tuple[int, int] = (48, 32)) -> bytes:
    Image.new("RGB", size, COLOURS[number % len(COLOURS)]).save(file := io.BytesIO(), kind)
    return file.getvalue()


class Dataset:
    """A new dataset of a service.

    Args:
        root: folder of the service's datasets.
        address: of the service.
    """

    def __init__(self, root: Path, address: str) -> None:
        self.name = f"d-{uuid.uuid4().hex[:8]}"
        self.folder, self.address = root / self.name, address
        self.folder.mkdir()

    def put(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)

    def write_shards(self, num_samples: int, *, per_shard: int = 5, **more: Any) -> None:
        with ShardWriter(f"{self.folder}/{{shard}}.tar", max_shard_samples=per_shard) as writer:
            for number in range(num_samples):
                writer.write({"__key__": f"{number:04}", "png": picture(number), "cls": number % 3, **more})

    def summary(self) -> Any:
        status, body, _ = ask(self.address, "GET", f"/datasets/{self.name}/summary")
        assert status == 200, body
        return json.loads(body)

    def colours(self) -> set[tuple[int, int, int]] | None:
        """Those of the pictures that are on its sheet; ``None`` if it has none."""
        status, body, _ = ask(self.address, "GET", f"/datasets/{self.name}/sheet.png")
        if status == 404:
            return None
        pixels = np.asarray(Image.open(io.BytesIO(body)).convert("RGB")).reshape(-1, 3)
        seen = Counter(map(tuple, pixels.tolist()))
        return {colour for colour in COLOURS if seen[colour] > 1000}

    def printed(self, capsys: pytest.CaptureFixture[str]) -> list[str]:
        """What the code of the page prints, in this process and without workers."""
        code = self.summary()["code"].replace("HOST:PORT", self.address).replace("NAME", self.name)
        exec(compile(code.replace("num_workers=", "num_workers=0 * "), "train.py", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out.splitlines()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("service") / "root"
    with (root.parent / "stderr").open("w") as stderr:
        service = Service(root, "--min-free-bytes", "0", stderr=stderr)
        try:
            yield root, service.address
        finally:
            service.stop()


@pytest.fixture
def dataset(service: tuple[Path, str]) -> Dataset:
    return Dataset(*service)


@given(
    files=st.dictionaries(
        st.from_regex(r"([ab]/){0,2}[a-d]{1,3}\.(jpg|csv|txt|PNG)", fullmatch=True), st.binary(max_size=30), max_size=12
    ),
)
def test_the_summary_counts_files_bytes_and_folders(service: tuple[Path, str], files: dict[str, bytes]) -> None:
    """Labels are the folders of images, if half of the files are images, and else of all files."""
    dataset = Dataset(*service)
    dataset.put(files)
    summary = dataset.summary()
    assert (summary["num_files"], summary["num_bytes"]) == (len(files), sum(map(len, files.values())))
    assert summary["complete"]
    images = [path for path in files if path.lower().endswith((".jpg", ".png"))]
    assert summary["kind"] == ("images" if images and 2 * len(images) >= len(files) else "files")
    of = images if summary["kind"] == "images" else list(files)
    assert summary["classes"] == Counter(path.split("/")[-2] for path in of if "/" in path)
    assert summary["num_classes"] == len(summary["classes"])
    compile(summary["code"], "train.py", "exec")
    assert bool(summary["code"]) is bool(files)


def test_shards_have_samples_by_the_manifest_classes_by_name_pictures_and_code(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset.write_shards(12)
    classes = {key: {"id": number, "name": key} for number, key in enumerate(["ant", "bee", "cow"])}
    dataset.put({"classes.json": json.dumps(classes).encode()})
    summary = dataset.summary()
    assert {name: summary[name] for name in ("kind", "num_samples", "num_shards", "num_shards_seen", "problems")} == {
        "kind": "shards", "num_samples": 12, "num_shards": 3, "num_shards_seen": 3, "problems": []
    }  # fmt: skip
    assert (summary["classes"], summary["classes_complete"]) == ({"ant": 4, "bee": 4, "cow": 4}, True)
    assert dataset.colours() == set(COLOURS)
    assert any("(12, 3, 224, 224)" in line for line in dataset.printed(capsys))


def test_loose_images_have_folders_as_labels_and_code_for_the_folder_train(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"{part}/{label}/{n}.png": picture(n) for part in ("train", "val") for label in "ab" for n in range(3)}
    dataset.put({**files, "README.md": b"of both"})
    summary = dataset.summary()
    assert (summary["kind"], summary["classes"], summary["num_samples"]) == ("images", {"a": 6, "b": 6}, 12)
    assert '/train/"' in summary["code"]
    assert any("(6, 3, 224, 224)" in line for line in dataset.printed(capsys))
    assert dataset.colours() == set(COLOURS[:3])


@pytest.mark.parametrize(
    ("files", "printed"),
    [
        ({"1.csv": b"1", "2.csv": b"22"}, {" 1", " 2"}),
        ({"LICENSE": b"333"}, {"LICENSE 3"}),
        ({"top.png": picture(0), "a/1.png": picture(1)}, {"top.png ", "a/1.png "}),
        ({"1.png": picture(0), "2.png": picture(1)}, {"(2, 3, 224, 224) [-1, -1]"}),
        ({'train/it\'s "a"/1.csv': b"1", "train/b/1.csv": b"22"}, {'it\'s "a"/1.csv 1', "b/1.csv 2"}),
    ],
    ids=["files", "without", "mixed", "test-set", "quotes"],
)
def test_the_code_of_the_page_runs_for_any_files(
    dataset: Dataset, files: dict[str, bytes], printed: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    dataset.put(files)
    lines = dataset.printed(capsys)
    assert [text for text in printed if not any(text in line for line in lines)] == [], lines


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_shards_without_manifest_and_index_are_counted_by_their_folders_of_keys(
    dataset: Dataset, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for shard in range(3):
        data = pack_tar([(f"{'cat' if n % 2 else 'dog'}/{shard}{n}.txt", b"x" * n) for n in range(4)])
        dataset.put({f"part{shard}{ending}": gzip.compress(data) if ending.endswith(".gz") else data})
    summary = dataset.summary()
    assert (summary["num_samples"], summary["classes"]) == (12, {"cat": 6, "dog": 6})
    assert not summary["has_pictures"]
    assert dataset.colours() is None
    assert Counter(line.partition("/")[0] for line in dataset.printed(capsys)) == {"cat": 6, "dog": 6}


def test_damage_is_reported_without_the_servers_paths_and_is_a_crossed_cell(
    service: tuple[Path, str], dataset: Dataset
) -> None:
    dataset.write_shards(15)
    dataset.put({"1.tar": b"\1" * 6000})
    summary = dataset.summary()
    (problem,) = summary["problems"]
    assert problem.startswith("1.tar")
    assert str(dataset.folder) not in json.dumps(summary)
    assert not summary["classes_complete"]
    assert dataset.colours()
    Image.new("1", (9_500, 9_500)).save(bomb := io.BytesIO(), "PNG")
    loose = Dataset(*service)
    loose.put({"a/1.png": b"no picture", "a/2.png": b"", "b/bomb.png": bomb.getvalue(), "b/3.png": picture(2)})
    assert loose.colours() == {COLOURS[2]}
    assert (service[0].parent / "stderr").read_text() == "", "nor a warning of Pillow"


def test_each_format_that_samples_are_decoded_from_is_on_the_sheet(service: tuple[Path, str]) -> None:
    """Loose or in shards; a member that cannot be part of a sample does not hide the images behind it."""
    gif = picture(0, "GIF")
    tar = pack_tar([("1.png", picture(0)), ("README", b"text"), ("2.png", picture(1))])
    for name, data, colours in (
        ("a/1.gif", gif, 1), ("0.tar", pack_tar([("1.gif", gif)]), 1), ("0.tar", tar, 2)
    ):  # fmt: skip
        dataset = Dataset(*service)
        dataset.put({name: data})
        assert dataset.colours() == set(COLOURS[:colours])
        assert dataset.summary()["has_pictures"] or colours == 2


def test_an_empty_dataset_is_no_error(dataset: Dataset) -> None:
    summary = dataset.summary()
    assert [summary[name] for name in ("num_files", "kind", "code", "has_pictures")] == [0, "files", "", False]
    assert dataset.colours() is None


def test_the_sheet_has_pictures_of_each_folder_in_turn(dataset: Dataset) -> None:
    """However many images a folder has."""
    dataset.put({f"{label}/{n:03}.png": picture(label) for label in range(6) for n in range(200 if label == 0 else 2)})
    assert dataset.colours() == set(COLOURS)


def test_of_many_shards_some_at_even_distances_are_looked_into(dataset: Dataset) -> None:
    """Which is said; the number of samples is that of the manifest, or not known."""
    for number in range(70):
        dataset.put({f"{number:03}.tar": pack_tar([(f"{number}.cls", b"%d" % (number // 10)), (f"{number}.txt", b"")])})
    summary = dataset.summary()
    assert (summary["num_shards"], summary["num_shards_seen"], summary["num_samples"]) == (70, 32, None)
    assert not summary["classes_complete"]
    assert set(summary["classes"]) == {str(number) for number in range(7)}
    assert set(summary["classes"].values()) <= {4, 5}


@pytest.mark.parametrize("name", ["a.png", "1.tar"])
def test_links_out_of_the_dataset_are_refused_and_not_read(dataset: Dataset, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(picture(3) if name == "a.png" else pack_tar([("1.cls", b"3")]))
    (dataset.folder / name).symlink_to(tmp_path / "outside")
    for what in ("summary", "sheet.png"):
        status, body, _ = ask(dataset.address, "GET", f"/datasets/{dataset.name}/{what}")
        assert (status, b"is a link" in body) == (403, True)
