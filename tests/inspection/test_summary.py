"""Summary and contact sheet of a dataset, as the service's page shows them."""

from __future__ import annotations

import gzip
import io
import json
import random
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from tests.support.requested_bytes import requested_bytes
from tests.support.shard_places import Place, memory_place
from torchdata_remote import ShardWriter
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.inspection import Summary, draw_sheet, summarize
from torchdata_remote.inspection.probe import Budget, evenly_spaced, list_dataset, probe_shard
from torchdata_remote.inspection.training_code import ADDRESS

COLOURS = [(200, 30, 30), (30, 160, 40), (40, 60, 210), (200, 180, 20), (130, 40, 160), (30, 170, 180)]


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), COLOURS[number % len(COLOURS)]).save(file, "PNG")
    return file.getvalue()


def write_shards(place: Place, num_samples: int, *, per_shard: int = 5, **more: Any) -> None:
    with ShardWriter(f"{place.url}{{shard}}.tar", max_shard_samples=per_shard, storage_options=place.options) as writer:
        for number in range(num_samples):
            writer.write({"__key__": f"{number:04}", "png": picture(number), "cls": number % 3, **more})


def colours_in(sheet: bytes | None) -> set[tuple[int, int, int]]:
    """Those of the pictures that are on a sheet."""
    assert sheet is not None
    pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")).reshape(-1, 3)
    seen = Counter(map(tuple, pixels.tolist()))
    return {colour for colour in COLOURS if seen[colour] > 1000}


def run(summary: Summary, place: Place, capsys: pytest.CaptureFixture[str]) -> str:
    """What the lines print, with the folder itself for the service's address, in this process."""
    code = summary.code.replace(ADDRESS, place.url.rstrip("/"))
    code = code.replace('{"secure": False}', repr(place.options or {})).replace("num_workers=", "num_workers=0 * ")
    exec(compile(code, "train.py", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


@settings(max_examples=40)
@given(
    files=st.dictionaries(
        st.from_regex(r"([ab]/){0,2}[a-d]{1,3}\.(jpg|csv|txt|PNG)", fullmatch=True), st.binary(max_size=30), max_size=12
    ),
    max_files=st.integers(1, 15),
)
def test_summary_counts_sizes_and_folders_of_any_files(files: dict[str, bytes], max_files: int) -> None:
    """All files, or the first ones by path with ``complete=False``; labels are their folders."""
    place = memory_place()
    place.put(files)
    summary = summarize(place.url, None, max_files=max_files)
    seen = sorted(files)[:max_files]
    assert (summary.num_files, summary.num_bytes) == (len(seen), sum(len(files[path]) for path in seen))
    assert summary.complete is (len(files) <= max_files)
    images = [path for path in seen if path.lower().endswith((".jpg", ".png"))]
    assert summary.kind == ("images" if images and 2 * len(images) >= len(seen) else "files")
    of = images if summary.kind == "images" else seen
    assert summary.classes == Counter(path.split("/")[-2] for path in of if "/" in path)
    assert summary.num_classes == len(summary.classes)
    json.dumps(summary.as_json())
    compile(summary.code, "train.py", "exec")
    assert bool(summary.code) is bool(files)


def test_summary_sheet_and_code_for_shards_in_each_store(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Samples by the manifest, labels by class name, pictures from shards; the code reads all samples."""
    write_shards(place, 12)
    place.put(
        {"classes.json": json.dumps({k: {"id": i, "name": k} for i, k in enumerate(["ant", "bee", "cow"])}).encode()}
    )
    summary = summarize(place.url, place.options)
    assert (summary.kind, summary.num_samples, summary.num_shards, summary.num_shards_seen) == ("shards", 12, 3, 3)
    assert summary.classes == {"ant": 4, "bee": 4, "cow": 4}
    assert summary.classes_complete
    assert summary.problems == ()
    assert colours_in(draw_sheet(place.url, place.options)) == set(COLOURS)
    assert "(12, 3, 224, 224)" in run(summary, place, capsys)


def test_summary_sheet_and_code_for_loose_images_in_each_store(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders are labels; the code reads the folder ``train`` if there is one."""
    files = {f"{part}/{label}/{n}.png": picture(n) for part in ("train", "val") for label in "ab" for n in range(3)}
    place.put({**files, "README.md": b"of both"})
    summary = summarize(place.url, place.options)
    assert (summary.kind, summary.classes, summary.num_samples) == ("images", {"a": 6, "b": 6}, 12)
    assert f'"{ADDRESS}/train/"' in summary.code
    assert "(6, 3, 224, 224)" in run(summary, place, capsys)
    assert colours_in(draw_sheet(place.url, place.options)) == set(COLOURS[:3])


@pytest.mark.parametrize(
    ("files", "printed"),
    [
        ({"1.csv": b"1", "2.csv": b"22"}, {" 1", " 2"}),
        ({"yes/1.txt": b"1", "no/2.txt": b"22"}, {"1 1", "0 2"}),
        ({"yes/a.b.csv": b"1", "no/2.csv": b"22"}, {"1 1", "0 2"}),
        ({"LICENSE": b"333"}, {"LICENSE 3"}),
        ({"top.png": picture(0), "a/1.png": picture(1)}, {"(2, 3, 224, 224)"}),
        ({"1.png": picture(0), "2.png": picture(1)}, {"(2, 3, 224, 224) [-1, -1]"}),
        ({'it\'s "a"/1.csv': b"1", "b/1.csv": b"22"}, {"1 1", "0 2"}),
    ],
    ids=["files", "classes", "extensions", "without", "mixed", "test-set", "quotes"],
)
def test_generated_code_runs_for_any_files(
    files: dict[str, bytes], printed: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Any names, in any folders."""
    place = memory_place()
    place.put(files)
    out = run(summarize(place.url, None), place, capsys)
    assert all(any(text in line for line in out.splitlines()) for text in printed), out


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_summary_of_shards_without_manifest_and_index(ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without manifest and index, labelled by folders in the keys, and compressed."""
    place = memory_place()
    for shard in range(3):
        data = pack_tar([(f"{'cat' if n % 2 else 'dog'}/{shard}{n}.txt", b"x" * n) for n in range(4)])
        place.put({f"part{shard}{ending}": gzip.compress(data) if ending.endswith(".gz") else data})
    summary = summarize(place.url, None)
    assert (summary.num_samples, summary.classes) == (12, {"cat": 6, "dog": 6})
    assert not summary.has_pictures
    assert draw_sheet(place.url, None) is None
    assert Counter(line[0] for line in run(summary, place, capsys).splitlines()) == {"0": 6, "1": 6}


def test_damage_is_reported_without_the_servers_paths() -> None:
    """An unreadable shard is reported by its path below the dataset; an unreadable picture is a crossed cell."""
    place = memory_place()
    write_shards(place, 15)
    place.put({"1.tar": b"\1" * 6000})
    summary = summarize(place.url, None)
    (problem,) = summary.problems
    assert problem.startswith("1.tar")
    assert place.url not in problem
    assert not summary.classes_complete
    sheet = draw_sheet(place.url, None)
    assert sheet is not None
    bomb = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(bomb, "PNG")
    loose = memory_place()
    loose.put({"a/1.png": b"no picture", "a/2.png": b"", "b/bomb.png": bomb.getvalue(), "b/3.png": picture(2)})
    assert colours_in(draw_sheet(loose.url, None)) == {COLOURS[2]}
    assert Image.open(io.BytesIO(draw_sheet(loose.url, None) or b"")).width == 4 * 170 + 10


def test_sheet_shows_gif_images_loose_or_in_shards() -> None:
    """The page shows each image format that samples are decoded from, as the command line does."""
    file = io.BytesIO()
    Image.new("RGB", (48, 32), COLOURS[0]).save(file, "GIF")
    for name, data in (("a/1.gif", file.getvalue()), ("0.tar", pack_tar([("1.gif", file.getvalue())]))):
        place = memory_place()
        place.put({name: data})
        assert summarize(place.url, None).has_pictures
        assert colours_in(draw_sheet(place.url, None)) == {COLOURS[0]}


def test_sheet_leaves_out_members_that_cannot_be_part_of_a_sample() -> None:
    """A file without extension between the samples of a shard does not hide the images behind it."""
    place = memory_place()
    place.put({"0.tar": pack_tar([("1.png", picture(0)), ("README", b"text"), ("2.png", picture(1))])})
    assert colours_in(draw_sheet(place.url, None)) == set(COLOURS[:2])


def test_summary_and_sheet_of_an_empty_dataset() -> None:
    """An empty dataset is no error."""
    url = f"memory://{uuid.uuid4().hex}/"
    summary = summarize(url, None)
    assert (summary.num_files, summary.kind, summary.code, summary.has_pictures) == (0, "files", "", False)
    assert draw_sheet(url, None) is None


def test_sheet_takes_pictures_from_each_folder_in_turn() -> None:
    """From each folder in turn, however many images a folder has."""
    place = memory_place()
    place.put({f"{label}/{n:03}.png": picture(label) for label in range(6) for n in range(40 if label == 0 else 2)})
    assert colours_in(draw_sheet(place.url, None, num_pictures=6)) == set(COLOURS)


@given(items=st.lists(st.integers(), max_size=50), num=st.integers(1, 60))
def test_evenly_spaced_items_are_in_order_and_apart(items: list[int], num: int) -> None:
    """Distinct positions in order, whose distances differ by one at most."""
    places = evenly_spaced(list(range(len(items))), num)
    assert places == sorted(set(places))
    assert len(places) == min(num, len(items))
    gaps = [after - before for before, after in zip(places, [*places[1:], len(items)], strict=False)]
    assert not gaps or max(gaps) - min(gaps) <= 1


@settings(max_examples=30)
@given(num_bytes=st.integers(0, 40_000), seed=st.integers(0, 5))
def test_probe_stops_at_the_budget_and_counts_whole_samples(num_bytes: int, seed: int) -> None:
    """Samples are counted as a whole, and ``complete`` is true only if these were all."""
    sizes = [random.Random(seed).randrange(2000) for _ in range(12)]
    tar = pack_tar([(f"{n}.{e}", b"1" * size) for n, size in enumerate(sizes) for e in ("a", "b")])
    fsspec.filesystem("memory").pipe("/budget/0.tar", tar)
    (shard,) = list_dataset("memory://budget/", StorageOptions(None), max_files=9).files
    look = probe_shard(shard, StorageOptions(None), Budget(max_s=60, max_bytes=num_bytes))
    costs = [2 * (512 + size) for size in sizes]
    assert look.complete is (sum(costs) <= num_bytes)
    affordable = next((n for n in range(len(sizes), -1, -1) if sum(costs[:n]) <= num_bytes), 0)
    assert affordable - 1 <= look.num_samples <= affordable
    assert set(look.extensions.values()) <= {look.num_samples}
    assert look.problem == ""


def test_summary_and_sheet_read_less_than_a_tenth_of_shards(moto: S3Server) -> None:
    """Of 12 MB, summary and sheet request less than a tenth."""
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    write_shards(place, 60, per_shard=30, **{"raw.bin": np.random.default_rng(0).bytes(200_000)})
    with faulty(moto) as (server, store):
        summary = summarize(place.url, server.storage_options)
        sheet = draw_sheet(place.url, server.storage_options)
    assert (summary.num_samples, sum(summary.classes.values())) == (60, 60)
    assert colours_in(sheet)
    assert requested_bytes(store, ".tar") < 0.1 * 12_000_000


def test_summary_of_the_listing_opens_no_shard(moto: S3Server) -> None:
    """Only the listing is requested."""
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    write_shards(place, 6)
    with faulty(moto) as (server, store):
        summary = summarize(place.url, server.storage_options, look_inside=False)
    assert (summary.kind, summary.num_shards, summary.classes_complete) == ("shards", 2, False)
    assert not any(request.path.endswith(".tar") for request in store.requests)


def test_files_that_are_replaced_by_links_after_the_listing_are_not_read(tmp_path: Path) -> None:
    """Neither pictures nor shards: they are read in the version that was listed."""
    (tmp_path / "outside.png").write_bytes(picture(3))
    (tmp_path / "outside.tar").write_bytes(pack_tar([("1.png", picture(3)), ("1.cls", b"3")]))
    for name in ("loose/a.png", "loose/b.png", "shards/0.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(0) if name.endswith("png") else pack_tar([("1.png", picture(0))]))
    for kind, replaced in (("loose", "a.png"), ("shards", "0.tar")):
        url = f"file://{tmp_path}/{kind}/"
        files = list_dataset(url, StorageOptions(), max_files=9).files
        (tmp_path / kind / replaced).unlink()
        (tmp_path / kind / replaced).symlink_to(tmp_path / f"outside{replaced[-4:]}")
        sheet = draw_sheet(url, None, files=files)
        assert colours_in(sheet) == {COLOURS[0]} if kind == "loose" else sheet is None
        assert "3" not in summarize(url, None, files=files).classes
