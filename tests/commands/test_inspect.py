"""``torchdata-remote inspect``."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.archive_bytes import pack_tar
from torchdata_remote import ShardWriter, stream_shards
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards


def printed_by(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_inspect_prints_members_first_samples_classes_and_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What each member is, as many first samples as ``--samples``, and two histograms; classes have their names."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        for number in range(4):
            writer.write({"__key__": f"d/{number}", "cls": number % 3, "jpg": bytes(1000 * number + 1000)})
    table = {name: {"id": number, "name": name} for number, name in enumerate(["cat", "dog", "kit fox"])}
    (tmp_path / "classes.json").write_text(json.dumps(table))
    assert main(["inspect", f"{tmp_path}/0.tar", "--samples", "2"]) == 0
    head, members, first, classes, sizes = printed_by(capsys).split("\n\n")
    assert head.splitlines()[:2] == [f"file://{tmp_path}/0.tar", "  17,408 bytes, 4 samples, 8 members"]
    assert members.splitlines() == [
        "  member  count  min bytes  median    max",
        "  cls         4          1       1      1",
        "  jpg         4      1,000   2,500  4,000",
    ]
    assert first.splitlines() == [
        "  first samples",
        '  d/0  cls "0" (cat), 1 byte  jpg, 1,000 bytes',
        '  d/1  cls "1" (dog), 1 byte  jpg, 2,000 bytes',
    ]
    full = "█" * 40
    assert classes.splitlines() == [
        "  3 classes (cls), 1 to 2 samples each",
        f"  0  cat      2  {full}",
        f"  1  dog      1  {full[:20]}",
        f"  2  kit fox  1  {full[:20]}",
    ]
    assert sizes.splitlines() == [
        "  bytes of a sample, all its members together",
        f"  1,000 to 1,499  1  {full}",
        "  1,500 to 1,999  0",
        f"  2,000 to 2,499  1  {full}",
        "  2,500 to 2,999  0",
        f"  3,000 to 3,499  1  {full}",
        "  3,500 to 3,999  0",
        f"  4,000 to 4,499  1  {full}",
    ]


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([7, 7], ["7 2"]),
        ([0], ["0 1"]),
        ([4, 2, 4], ["2 1", "3 0", "4 2"]),
        ([0, 11], ["0 1", *(f"{size} 0" for size in range(1, 11)), "11 1"]),
        ([0, 12], ["0 to 1 1", *(f"{size} to {size + 1} 0" for size in range(2, 12, 2)), "12 to 13 1"]),
        (
            [1399, 1010],
            ["1,000 to 1,049 1", *(f"{n:,} to {n + 49:,} 0" for n in range(1050, 1350, 50)), "1,350 to 1,399 1"],
        ),
        (
            [100, 1299],
            ["100 to 199 1", *(f"{n:,} to {n + 99:,} 0" for n in range(200, 1200, 100)), "1,200 to 1,299 1"],
        ),
        (
            [100, 1300],
            ["0 to 199 1", *(f"{n:,} to {n + 199:,} 0" for n in range(200, 1200, 200)), "1,200 to 1,399 1"],
        ),
        ([1, 50], ["0 to 4 1", *(f"{n} to {n + 4} 0" for n in range(5, 50, 5)), "50 to 54 1"]),
        ([1, 51], ["1 1", "2 to 3 0", "4 to 7 0", "8 to 15 0", "16 to 31 0", "32 to 63 1"]),
        (
            [3, 200_000],
            ["1 to 3 1", *(f"{4**n:,} to {4 ** (n + 1) - 1:,} 0" for n in range(1, 8)), "65,536 to 262,143 1"],
        ),
        ([0, 700, 512], ["0 1", "1 0", *(f"{2**n} to {2 * 2**n - 1} 0" for n in range(1, 9)), "512 to 1,023 2"]),
    ],
)
def test_inspect_counts_sizes_between_round_numbers(
    sizes: list[int], rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In at most 12 rows: of the same width, or growing by a power of two where sizes differ by more than 50 times."""
    (tmp_path / "0.tar").write_bytes(pack_tar([(f"{at}.bin", bytes(size)) for at, size in enumerate(sizes)]))
    assert main(["inspect", f"{tmp_path}/0.tar", "--samples", "0"]) == 0
    printed = printed_by(capsys).split("  bytes of a sample, all its members together\n")[1].splitlines()
    assert [" ".join(row.replace("█", "").split()) for row in printed] == rows
    assert len({len(row.rstrip(" █")) for row in printed}) == 1, "aligned at the right"
    most = max(int(row.split()[-1]) for row in rows)
    assert [row.count("█") for row in printed] == [40 * int(row.split()[-1]) // most for row in rows]


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ([b"3"], "1 classes (cls), 1 samples each"),
        ([b"a", b"cat", b"a"], "2 classes (cls), 1 to 2 samples each"),
        ([b"%d" % (n * n // 25) for n in range(30)], "23 classes (cls), 1 to 5 samples each; the most frequent:"),
    ],
)
def test_inspect_says_how_many_samples_a_class_has(
    labels: list[bytes], counts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "0.tar").write_bytes(pack_tar([(f"{at:03}.cls", label) for at, label in enumerate(labels)]))
    assert main(["inspect", f"{tmp_path}/0.tar", "--samples", "0"]) == 0
    _, _, counted, _ = printed_by(capsys).split("\n\n")
    assert counted.splitlines()[0] == f"  {counts}"


@pytest.mark.parametrize("manifest", ["with", "without"])
def test_inspect_of_a_folder_summarizes_the_manifest_and_the_first_shard(
    tmp_path: Path, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest is summarized, or reported as missing; then the first shard is inspected."""
    folder = f"file://{tmp_path}/train"
    write_small_shards(folder, num_shards=3, samples_per_shard=4)
    if manifest == "without":
        (tmp_path / "train" / "index.json").unlink()
    assert main(["inspect", folder]) == 0
    out = printed_by(capsys)
    if manifest == "with":
        assert out.startswith(f"{folder}/index.json\n  3 shards, 12 samples, ")
        assert "samples a shard: 4 to 4, median 4" in out
    else:
        assert out.startswith("no manifest")
        assert "3 shards, " in out
    assert f"{folder}/000000.tar\n" in out
    assert "000001.tar" not in out


def test_inspect_json_has_the_same_facts(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for programs."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    assert main(["inspect", memory_folder, "--json", "--samples", "1"]) == 0
    document = json.loads(printed_by(capsys))
    assert document["url"] == memory_folder
    assert document["set"]["num_samples"] == 8
    assert document["set"]["shard_samples"] == {"min": 4, "median": 4, "max": 4}
    assert document["shard"]["num_samples"] == 4
    assert document["shard"]["extensions"]["cls"]["num_members"] == 4
    assert document["shard"]["first"] == [{"key": "0/000000", "label": "0", "bytes": {"cls": 1, "txt": 9}}]
    assert list(document["shard"]["sample_bytes"]) == ["edges", "counts"]
    assert sum(document["shard"]["sample_bytes"]["counts"]) == 4
    assert (document["shard"]["class_names"], document["shard"]["folders"]) == ({}, {})
    assert document["shard"]["labels"] == {"0": 1, "1": 1, "2": 1, "3": 1}


TAR = pack_tar([("a.txt", b"a")])


def put(*urls: str) -> None:
    fsspec.filesystem("memory").pipe({url.removeprefix("memory:/"): TAR for url in urls})


@pytest.fixture
def shards(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, int | None, int | None, str | None]]:
    """Number of shards that a URL stands for, of their samples and bytes if known, and the URL of their manifest."""

    def found(url: str) -> Any:
        assert main(["inspect", url, "--json"]) == 0
        document = json.loads(printed_by(capsys))["set"]
        return tuple(document[name] for name in ("num_shards", "num_samples", "num_bytes", "manifest_url"))

    return found


def test_a_folder_stands_for_its_tars_and_what_is_named_for_itself(memory_folder: str, shards: Any) -> None:
    """Compressed or not; a folder not for what lies beside and below, a pattern for tars only, one name for any."""
    names = ["B.TAR", "a.tar", "c.tar.gz", "d.tgz", "e.tar.zst", "f.b.tar.xz", "g.tbz2", "é.tar"]
    beside = [".tar", "tar", "a.tar.idx", "a.tar.tmp", "atar", "h.tar.gz.part", "below/c.tar"]
    put(*(f"{memory_folder}/{name}" for name in (*names, *beside)))
    for url in (memory_folder, f"{memory_folder}/"):
        assert shards(url) == (8, None, 8 * len(TAR), None)
        samples = stream_shards(url, seed=None)
        found = [sample["__url__"].removeprefix(f"{memory_folder}/") for sample in samples]
        assert found == sorted([*names, "below/c.tar"]), "which enters folders below"
    assert shards(f"{memory_folder}/*.tar.*") == (3, None, 3 * len(TAR), None)
    assert shards(f"{memory_folder}/{{c,z}}.tar.gz") == (2, None, None, None)
    assert shards(f"{memory_folder}/atar") == (1, None, len(TAR), None)


def test_a_manifest_decides_which_objects_of_its_folder_are_shards(memory_folder: str, shards: Any) -> None:
    """Whether it or the folder is named, with its counts and the sizes of the listing."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    put(f"{memory_folder}/000007.tar", f"{memory_folder}/000001.tar", f"{memory_folder}/other/index.json")
    for url in ("", "/", "/index.json"):
        assert shards(memory_folder + url) == (2, 6, 7168 + len(TAR), f"{memory_folder}/index.json")


def test_a_url_without_shards_is_an_error_with_advice(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", memory_folder]) == 1
    assert memory_folder in capsys.readouterr().err
    put(f"{memory_folder}/a.txt", f"{memory_folder}/b.txt")
    assert main(["inspect", memory_folder]) == 1
    assert "no objects found that are tars" in capsys.readouterr().err


def test_inspect_reports_a_class_table_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a note; classes are shown by their numbers."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "cls": 3})
    (tmp_path / "classes.json").write_text("[1]")
    assert main(["inspect", f"{tmp_path}/0.tar"]) == 0
    out = printed_by(capsys)
    assert f"  note: classes have no names: file://{tmp_path}/classes.json: " in out
    assert "1 classes (cls), 1 samples each\n  3  1  █" in out


def test_inspect_counts_folders_where_there_are_no_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last folder of the keys; the 20 most frequent ones if there are more."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        for number in range(31):
            writer.write({"__key__": f"x/f{number % 23:02d}/{number}", "txt": "a"})
    assert main(["inspect", f"{tmp_path}/0.tar", "--samples", "0"]) == 0
    *_, folders, _ = printed_by(capsys).split("\n\n")
    head, *rows = folders.splitlines()
    assert head == "  23 folders of keys, 1 to 2 samples each; the most frequent:"
    assert rows[:9] == [*(f"  f0{number}  2  {'█' * 40}" for number in range(8)), f"  f08  1  {'█' * 20}"]
    assert len(rows) == 20


def test_inspect_escapes_terminal_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys, extensions and labels of strangers are escaped, in JSON too."""
    (tmp_path / "0.tar").write_bytes(pack_tar([("\x1b[2J.\x1b[1m", b""), ("\x1b[2J.cls", b"\x1b[31m")]))
    for form in ([], ["--json"]):
        assert main(["inspect", str(tmp_path / "0.tar"), *form]) == 0
        out = printed_by(capsys)
        assert "\x1b" not in out
        assert "x1b[31m" in out or "u001b[31m" in out


def test_bars_are_plain_where_the_terminal_is_and_a_small_number_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [(f"{number:03}.cls", b"%d" % (number > 0)) for number in range(200)]
    (tmp_path / "0.tar").write_bytes(pack_tar(members))
    shown = {}
    for encoding in ("ascii", "utf-8"):
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer := io.BytesIO(), encoding))
        assert main(["inspect", f"{tmp_path}/0.tar", "--samples", "0"]) == 0
        sys.stdout.flush()
        shown[encoding] = buffer.getvalue().decode(encoding).split("samples each")[1].splitlines()[1:3]
    assert [row.split() for row in shown["ascii"]] == [["0", "1", "#"], ["1", "199", "#" * 40]]
    assert [row.split() for row in shown["utf-8"]] == [["0", "1", "▏"], ["1", "199", "█" * 40]]
