"""``torchdata-remote shard``: how its arguments reach ``shard_dataset``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from torchdata_remote import ShardInfo, labels
from torchdata_remote.cli import main

TEMPLATE = "s3://b/train/{shard:06d}.tar"
Call = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What ``shard_dataset`` is called with."""
    seen: list[Call] = []

    def shard_dataset(*arguments: Any, **options: Any) -> list[ShardInfo]:
        seen.append((arguments, options))
        return [ShardInfo(f"s3://b/train/{number:06d}.tar", 5, 10_240, "") for number in range(2)]

    monkeypatch.setattr("torchdata_remote.cli._shard.shard_dataset", shard_dataset)
    return seen


def double(sample: Any) -> Any:
    return sample


def test_shard_passes_only_arguments_of_the_command_line(calls: list[Call], capsys: pytest.CaptureFixture[str]) -> None:
    """Only arguments of the command line are passed; finished shards and a total are printed."""
    assert main(["shard", "photos/", TEMPLATE]) == 0
    assert calls == [(("photos/", TEMPLATE), {"progress": True})]
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()] == [
        ["5", "samples", "s3://b/train/000000.tar"],
        ["5", "samples", "s3://b/train/000001.tar"],
        ["10", "samples", "in", "2", "shards", "of", "20,480", "bytes:", "manifest", "written"],
    ]
    assert captured.err == ""


def test_shard_passes_each_option_with_its_type(calls: list[Call], capsys: pytest.CaptureFixture[str]) -> None:
    """Reaches the function under its name, with its type."""
    arguments = [
        *("--max-shard-bytes", "1_000_000", "--max-shard-samples", "7", "--seed", "none", "--num-workers", "2"),
        *("--pattern", "*.jpg", "--append", "--no-resume", "--quiet", "--provenance"),
        *("--storage-options", '{"key": "k"}', "--source-options", "{}"),
        *("--labels", "parent-directory", "--transform", f"{__name__}:double"),
    ]
    assert main(["shard", *arguments, "s3://a/", TEMPLATE]) == 0
    ((places, options),) = calls
    assert places == ("s3://a/", TEMPLATE)
    assert options.pop("labels") == labels.parent_directory()
    assert options.pop("transform").__name__ == "double"
    assert options == {
        "max_shard_bytes": 1_000_000,
        "max_shard_samples": 7,
        "seed": None,
        "num_workers": 2,
        "pattern": "*.jpg",
        "append": True,
        "resume": False,
        "progress": False,
        "provenance": True,
        "storage_options": {"key": "k"},
        "source_options": {},
    }
    assert len(capsys.readouterr().out.splitlines()) == 1, "only the total"
    assert main(["shard", "a", TEMPLATE, "--overwrite", "--seed", "3"]) == 0
    assert calls[1][1] == {"overwrite": True, "seed": 3, "progress": True}


OPTIONS: dict[str, Any] = {
    "source": "s3://a/",
    "template": TEMPLATE,
    "max_shard_bytes": 5000,
    "seed": 7,
    "append": True,
    "no_resume": True,
    "quiet": True,
    "storage_options": {"endpoint_url": "http://h", "client_kwargs": {"region_name": "x"}},
    "labels": "pattern:_([a-z]+)$",
}
TOML = """
source = "s3://a/"
template = "s3://b/train/{shard:06d}.tar"
max_shard_bytes = 5_000
seed = 7
append = true
no_resume = true
quiet = true
labels = 'pattern:_([a-z]+)$'
[storage_options]
endpoint_url = "http://h"
client_kwargs = { region_name = "x" }
"""


@pytest.mark.parametrize(("name", "content"), [("o.json", json.dumps(OPTIONS)), ("o.toml", TOML)])
def test_shard_options_of_a_file_yield_to_the_command_line(
    tmp_path: Path, calls: list[Call], name: str, content: str
) -> None:
    """JSON and TOML are equivalent, in snake_case; the command line takes precedence, also with ``--no-``."""
    path = tmp_path / name
    path.write_text(content)
    assert main(["shard", "--options", str(path)]) == 0
    ((places, options),) = calls
    assert places == ("s3://a/", TEMPLATE)
    assert options.pop("labels") == labels.from_pattern("_([a-z]+)$")
    assert options == {
        "max_shard_bytes": 5000,
        "seed": 7,
        "append": True,
        "resume": False,
        "progress": False,
        "storage_options": OPTIONS["storage_options"],
    }
    flags = ["--seed", "none", "--no-append", "--resume", "--no-quiet", "--storage-options", "{}"]
    assert main(["shard", "other/", TEMPLATE, f"--options={path}", *flags, "--labels", "parent-directory"]) == 0
    places, options = calls[1]
    assert places == ("other/", TEMPLATE)
    assert options == {
        "max_shard_bytes": 5000,
        "seed": None,
        "append": False,
        "resume": True,
        "progress": True,
        "storage_options": {},
        "labels": labels.parent_directory(),
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"max_shard_byte": 1}', "no option 'max_shard_byte'; known options are append, base_name, id_base"),
        ('{"max-shard-bytes": 1}', "'max-shard-bytes'"),
        ('{"no_seed": true}', "'no_seed'"),
        ('{"max_shard_bytes": 0}', "max_shard_bytes: expected a number of at least 1, got 0"),
        ('{"max_shard_bytes": true}', "got True"),
        ('{"max_shard_bytes": 1.5}', "got 1.5"),
        ('{"append": "yes"}', "append: expected true or false, got 'yes'"),
        ('{"storage_options": [1]}', "storage_options: expected a table"),
        ('{"source": 3}', "source: expected a string"),
        ("[1]", "expected a table of options"),
        ("{", "cannot be read"),
        ("\xff", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_shard_options_file_with_a_mistake_is_named(
    tmp_path: Path, calls: list[Call], content: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is named, with the option that is wrong; nothing is done."""
    path = tmp_path / "options.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    assert main(["shard", "a", TEMPLATE, "--options", str(path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"torchdata-remote: {path}: ")
    assert says in printed
    assert calls == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "SOURCE"),
        (["a"], "TEMPLATE"),
        (["a", TEMPLATE, "--seed", "x"], "--seed"),
        (["a", TEMPLATE, "--seed", "-1"], "--seed"),
        (["a", TEMPLATE, "--num-workers", "-1"], "at least 0"),
        (["a", TEMPLATE, "--max-shard-bytes", "0"], "at least 1"),
        (["a", TEMPLATE, "--append", "--overwrite"], "choose one"),
        (["a", TEMPLATE, "--labels", "magic"], "known forms are parent-directory, pattern, classes-json"),
        (["a", TEMPLATE, "--labels", "pattern"], "expected a value after the colon"),
        (["a", TEMPLATE, "--labels", "parent-directory:x"], "expected no colon"),
        (["a", TEMPLATE, "--labels", "pattern:("], "labels: "),
        (["a", TEMPLATE, "--labels", "pattern:abc"], "one group"),
        (["a", TEMPLATE, "--labels", "classes-json:c.json"], "needs --id-base"),
        (["a", TEMPLATE, "--labels", "by-number:c.json"], "needs --number-base"),
        (["a", TEMPLATE, "--labels", "ground-truth:c.txt"], "needs --base-name"),
        (["a", TEMPLATE, "--labels", "parent-directory", "--id-base", "1"], "--id-base has no effect with"),
        (["a", TEMPLATE, "--base-name", "x"], "--base-name has no effect without --labels"),
        (["a", TEMPLATE, "--transform", "double"], "module:function"),
        (["a", TEMPLATE, "--transform", "no.such.module:f"], "cannot be imported"),
        (["a", TEMPLATE, "--transform", "json:nothing"], "cannot be imported"),
        (["a", TEMPLATE, "--transform", "math:pi"], "expected a function"),
        (["a", TEMPLATE, "--max-shard", "3"], "--max-shard"),
    ],
)
def test_shard_with_a_wrong_command_line_exits_with_2(
    calls: list[Call], arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and the mistake; nothing is written."""
    with pytest.raises(SystemExit) as caught:
        main(["shard", *arguments])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err
    assert calls == []


def test_shard_needs_source_and_template_from_line_or_file(
    tmp_path: Path, calls: list[Call], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a template on either, exit status 2."""
    path = tmp_path / "o.toml"
    path.write_text('source = "a"')
    with pytest.raises(SystemExit) as caught:
        main(["shard", "--options", str(path)])
    assert caught.value.code == 2
    assert "no template" in capsys.readouterr().err
    assert calls == []


def test_shard_label_forms_are_the_functions_of_labels(tmp_path: Path, calls: list[Call]) -> None:
    """Each form is the function of ``labels`` of that name, with its options."""
    classes, numbers, truth = tmp_path / "c.json", tmp_path / "n.json", tmp_path / "t.txt"
    classes.write_text('{"n1": {"id": 1, "name": "fox"}}')
    numbers.write_text('{"0": 490}')
    truth.write_text("3\n1\n")
    asked = [
        ([f"classes-json:{classes}", "--id-base", "1"], "n1/x.jpg", 0),
        ([f"by-number:{numbers}", "--number-base", "0"], "x_1.jpg", 489),
        ([f"by-number:{numbers}", "--number-base", "0", "--id-base", "0"], "x_1.jpg", 490),
        ([f"ground-truth:{truth}", "--base-name", "val_"], "val_00000002.JPEG", 0),
    ]
    for arguments, path, label in asked:
        assert main(["shard", "a", TEMPLATE, "--storage-options", '{"key": "k"}', "--labels", *arguments]) == 0
        assert calls[-1][1]["labels"](path) == label


def test_shard_with_unusable_label_file_fails(
    tmp_path: Path, calls: list[Call], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1; the file is named."""
    (tmp_path / "c.json").write_text("[]")
    for name in ("c.json", "missing.json"):
        assert main(["shard", "a", TEMPLATE, "--labels", f"classes-json:{tmp_path}/{name}", "--id-base", "0"]) == 1
        assert name in capsys.readouterr().err
    assert calls == []


def test_shard_imports_a_transform_from_the_working_directory(
    tmp_path: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script's imports do."""
    name = f"transforms_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text("class Kept:\n    def half(sample):\n        return sample\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nonexistent")  # what is added to the path is taken off again
    assert main(["shard", "a", TEMPLATE, "--transform", f"{name}:Kept.half"]) == 0
    assert calls[0][1]["transform"]("sample") == "sample"


def test_shard_writes_a_folder_to_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command; ``verify`` and ``ls`` agree with its result."""
    for number in range(6):
        path = tmp_path / "animals" / ("cat" if number % 2 else "dog") / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("words " * number)
    template = f"{tmp_path}/shards/{{shard:03d}}.tar"
    limits = ["--max-shard-samples", "4", "--labels", "parent-directory"]
    assert main(["shard", f"{tmp_path}/animals", template, *limits]) == 0
    assert re.search(r"6 samples in 2 shards of [\d,]+ bytes", capsys.readouterr().out)
    assert main(["verify", f"{tmp_path}/shards"]) == 0
    assert main(["inspect", f"{tmp_path}/shards"]) == 0
    assert "2 classes (cls)" in capsys.readouterr().out
