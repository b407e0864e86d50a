"""``torchdata-remote shard``: each of its options does what that of ``shard_dataset`` does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchdata_remote import stream_shards
from torchdata_remote.cli import main

TEMPLATE = "s3://b/train/{shard:06d}.tar"
Shard = Callable[..., list[Any]]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Six texts in two folders, and a picture that is none."""
    for number in range(6):
        path = tmp_path / "animals" / ("cat" if number % 2 else "dog") / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("word " * number)
    (tmp_path / "animals" / "cat" / "7.jpg").write_bytes(b"")
    return f"{tmp_path}/animals"


@pytest.fixture
def shard(tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]) -> Shard:
    """Run the command, and return the keys of each shard; its output is left to the test."""

    def run(*options: str, arguments: tuple[str, ...] | None = None) -> list[list[str]]:
        template = f"{tmp_path}/out/{{shard}}.tar"
        assert main(["shard", *((source, template) if arguments is None else arguments), *options]) == 0
        shards = sorted((tmp_path / "out").glob("*.tar"))
        return [[sample["__key__"] for sample in stream_shards(str(path), shuffle=False)] for path in shards]

    return run


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "txt": 2 * bytes(sample["txt"])}


def test_finished_shards_and_a_total_are_printed(shard: Shard, capsys: pytest.CaptureFixture[str]) -> None:
    """``--quiet`` leaves the total."""
    assert list(map(len, shard("--max-shard-samples", "4"))) == [4, 3]
    captured = capsys.readouterr()
    *lines, total = captured.out.splitlines()
    assert [(line.split()[:2], line.rpartition("/")[2]) for line in lines] == [
        (["4", "samples"], "0.tar"), (["3", "samples"], "1.tar")
    ]  # fmt: skip
    assert re.fullmatch(r" *7 samples in 2 shards of [\d,]+ bytes: manifest written", total)
    assert captured.err == ""
    shard("--overwrite", "--quiet")
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_order_limits_pattern_labels_and_provenance_are_options(shard: Shard, tmp_path: Path) -> None:
    in_order = ["cat/1", "cat/3", "cat/5", "dog/0", "dog/2", "dog/4"]
    options = ("--pattern", "*.txt", "--seed", "none", "--max-shard-bytes", "8_192", "--labels", "parent-directory")
    found = shard(*options, "--provenance", "--num-workers", "0", "--split-name", "last")
    assert len(found) > 1
    assert [key for keys in found for key in keys] == in_order
    assert all(path.stat().st_size <= 8192 for path in (tmp_path / "out").glob("*.tar"))
    assert [sample["cls"] for sample in stream_shards(f"{tmp_path}/out/", shuffle=False)] == [b"0"] * 3 + [b"1"] * 3
    assert list((tmp_path / "out").glob("*provenance*"))
    shuffled = [key for keys in shard("--pattern", "*.txt", "--overwrite", "--seed", "3") for key in keys]
    assert sorted(shuffled) == in_order != shuffled


def test_append_adds_shards_and_existing_ones_are_kept_without_it(
    shard: Shard, tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = shard("--pattern", "*.txt")
    assert len(shard("--pattern", "*.jpg", "--append")) == len(first) + 1
    before = (tmp_path / "out" / "0.tar").read_bytes()
    assert main(["shard", source, f"{tmp_path}/out/{{shard}}.tar"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "out" / "0.tar").read_bytes() == before


def test_a_transform_is_imported_from_the_working_directory(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script's imports do."""
    name = f"transforms_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "class Kept:\n    def twice(sample):\n        return {**sample, 'txt': 2 * bytes(sample['txt'])}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/no-such-folder")  # what is added to the path is taken off again
    shard("--pattern", "*/1.txt", "--transform", f"{name}:Kept.twice")
    (sample,) = stream_shards(f"{tmp_path}/out/")
    assert bytes(sample["txt"]) == b"word word "
    shard("--pattern", "*/1.txt", "--overwrite", "--transform", f"{__name__}:double")


def test_options_of_stores_reach_the_source_and_the_target(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each store refuses an option that it does not know; those of the target are for a source of its kind too."""
    wrong = '{"wrong": 1}'
    for arguments, named in [
        (["s3://a/", f"{tmp_path}/{{shard}}.tar", "--source-options", wrong], "s3://a/"),
        (["s3://a/", TEMPLATE, "--storage-options", wrong], "s3://"),
        ([source, TEMPLATE, "--storage-options", wrong], "s3://b/train/"),
    ]:
        assert main(["shard", *arguments]) == 1
        captured = capsys.readouterr().err
        assert captured.startswith(f"torchdata-remote: {named}")
        assert "unknown option 'wrong'" in captured


def test_options_of_a_file_yield_to_the_command_line(
    shard: Shard, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In snake_case, with source and template; a table is the options of a store."""
    path = tmp_path / "o.toml"
    path.write_text(f"""
source = "{source}"
template = "{tmp_path}/out/{{shard}}.tar"
max_shard_samples = 2
seed = "none"
pattern = "*.txt"
quiet = true
labels = 'pattern:^([a-z]+)/'
[storage_options]
auto_mkdir = true
""")
    assert shard("-c", str(path), arguments=()) == [["cat/1", "cat/3"], ["cat/5", "dog/0"], ["dog/2", "dog/4"]]
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert [sample["cls"] for sample in stream_shards(f"{tmp_path}/out/", shuffle=False)] == [b"0"] * 3 + [b"1"] * 3
    again = shard(f"--conf={path}", "--max-shard-samples", "5", "--no-quiet", "--overwrite", arguments=())
    assert list(map(len, again)) == [5, 1]
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "says", "status"),
    [
        ('{"max_shard_byte": 1}', "max_shard_byte", 2),
        ('{"max_shard_bytes": 0}', "max_shard_bytes", 2),
        ('{"max_shard_bytes": 1.5}', "max_shard_bytes", 2),
        ('{"append": "often"}', "append", 2),
        ('{"storage_options": [1]}', "storage_options", 2),
        ("[1]", "options.json: expected a table of options", 1),
        ("{", "options.json: the options cannot be read", 1),
        ("\xff", "options.json: the options cannot be read", 1),
        (None, "options.json: the options cannot be read", 1),
    ],
)
def test_a_mistake_in_a_file_of_options_is_named_and_nothing_is_written(
    tmp_path: Path, source: str, content: str | None, says: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    assert main(["shard", source, f"{tmp_path}/out/{{shard}}.tar", "--conf", str(path)]) == status
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seed", "x"], "--seed"),
        (["--seed", "1.5"], "--seed"),
        (["--num-workers", "-1"], "--num-workers"),
        (["--max-shard-bytes", "0"], "--max-shard-bytes"),
        (["--append", "--overwrite"], "choose one"),
        (["--labels", "magic"], "--labels: expected a form of parent-directory, pattern, classes-json"),
        (["--labels", "pattern"], "--labels pattern: "),
        (["--labels", "parent-directory:x"], "--labels parent-directory: "),
        (["--labels", "pattern:("], "--labels pattern: "),
        (["--labels", "pattern:abc"], "one group"),
        (["--labels", "by-number:c.json"], "number_base"),
        (["--labels", "ground-truth:c.txt"], "base_name"),
        (["--labels", "parent-directory", "--id-base", "1"], "id_base"),
        (["--base-name", "x"], "--labels: expected a form"),
        (["--transform", "double"], "module:function"),
        (["--transform", "no.such.module:f"], "cannot be imported"),
        (["--transform", "json:nothing"], "cannot be imported"),
        (["--transform", "math:pi"], "transform must be"),
        (["--max-shard", "3"], "--max-shard"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], says: str, tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", source, f"{tmp_path}/out/{{shard}}.tar", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_forms_of_labels_are_the_functions_of_labels(tmp_path: Path) -> None:
    """With numbers of classes that begin at 0 in the shards, whatever the files begin with."""
    classes, numbers, truth = tmp_path / "c.json", tmp_path / "n.json", tmp_path / "t.txt"
    classes.write_text('{"n1": {"id": 1, "name": "fox"}}')
    numbers.write_text('{"0": 490}')
    truth.write_text("3\n1\n")
    asked = [
        ([f"classes-json:{classes}", "--id-base", "1"], "n1/x.txt", b"0"),
        ([f"by-number:{numbers}", "--number-base", "0"], "x_1.txt", b"489"),
        ([f"by-number:{numbers}", "--number-base", "0", "--id-base", "0"], "x_1.txt", b"490"),
        ([f"ground-truth:{truth}", "--base-name", "val_"], "val_00000002.JPEG", b"0"),
    ]
    for case, (arguments, name, label) in enumerate(asked):
        path = tmp_path / f"{case}" / name
        path.parent.mkdir(parents=True)
        path.write_text("text")
        template = f"{tmp_path}/{case}-shards/{{shard}}.tar"
        assert main(["shard", f"{tmp_path}/{case}", template, "--labels", *arguments]) == 0
        assert [sample["cls"] for sample in stream_shards(f"{tmp_path}/{case}-shards/")] == [label]


def test_a_file_of_labels_that_cannot_be_used_is_named(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.json").write_text("[]")
    template = f"{tmp_path}/out/{{shard}}.tar"
    for name in ("c.json", "missing.json"):
        labels = ["--labels", f"classes-json:{tmp_path}/{name}", "--id-base", "0"]
        assert main(["shard", source, template, *labels]) == 1
        assert name in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
