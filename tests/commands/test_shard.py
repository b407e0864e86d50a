"""``torchdata-remote shard``: each of its options does what that of ``shard_dataset`` does."""

from __future__ import annotations

import json
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


OPTIONS = {"max_shard_samples": 2, "seed": "none", "pattern": "*.txt", "quiet": True, "labels": "pattern:^([a-z]+)/"}
TOML = """
max_shard_samples = 2
seed = "none"
pattern = "*.txt"
quiet = true
labels = 'pattern:^([a-z]+)/'
"""


@pytest.mark.parametrize("kind", ["json", "toml"])
def test_options_of_a_file_yield_to_the_command_line(
    kind: str, shard: Shard, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON and TOML are equivalent, in snake_case; source and template may be in it."""
    path, template = tmp_path / f"o.{kind}", f"{tmp_path}/out/{{shard}}.tar"
    places = {"source": source, "template": template}
    path.write_text(
        json.dumps({**OPTIONS, **places})
        if kind == "json"
        else "\n".join(f"{name} = {json.dumps(value)}" for name, value in places.items()) + TOML
    )
    assert shard("--options", str(path), arguments=()) == [["cat/1", "cat/3"], ["cat/5", "dog/0"], ["dog/2", "dog/4"]]
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert [sample["cls"] for sample in stream_shards(f"{tmp_path}/out/", shuffle=False)] == [b"0"] * 3 + [b"1"] * 3
    again = shard(f"--options={path}", "--max-shard-samples", "5", "--no-quiet", "--overwrite", arguments=())
    assert list(map(len, again)) == [5, 1]
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("form", [["--options", "{}"], ["--options={}"]])
@pytest.mark.parametrize("first", [True, False])
def test_what_a_file_of_options_lacks_is_required_on_the_command_line(
    form: list[str], first: bool, shard: Shard, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first positional argument is the source; the file's template is used, unless there are two."""
    template = f"{tmp_path}/out/{{shard}}.tar"
    files = {"none": {}, "source": {"source": source}, "template": {"template": template}, "both": {}}
    files["both"] = {"source": f"{tmp_path}/nothing", "template": f"{tmp_path}/other/{{shard}}.tar"}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"quiet": True, **content}))

    def line(name: str, *positional: str) -> list[str]:
        option = [word.format(tmp_path / f"{name}.json") for word in form]
        return [*option, *positional] if first else [*positional, *option]

    for wrong, lacks in [
        (line("none"), "no source and no template,"),
        (line("none", source), "no template,"),
        (line("source"), "no template,"),
        (line("template"), "no source,"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(["shard", *wrong])
        captured = capsys.readouterr()
        assert (ended.value.code, captured.out) == (2, "")
        assert f"torchdata-remote shard: error: {lacks} neither on the command line nor in {tmp_path}" in captured.err
    assert not (tmp_path / "out").exists()
    whole = shard(source, template, arguments=())
    assert shard(*line("template", source), "--overwrite", arguments=()) == whole
    assert shard(*line("both", source, template), "--overwrite", arguments=()) == whole
    assert not (tmp_path / "other").exists()


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
def test_a_mistake_in_a_file_of_options_is_named_and_nothing_is_written(
    tmp_path: Path, source: str, content: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    assert main(["shard", source, f"{tmp_path}/out/{{shard}}.tar", "--options", str(path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"torchdata-remote: {path}: ")
    assert says in printed
    assert not (tmp_path / "out").exists()


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
def test_a_wrong_command_line_ends_with_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["shard", *arguments])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


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
