"""Functional names are typed: mypy, pyright and language servers see them from a folder outside the repository."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import jedi
import pytest

import torchdata_remote as tdr
from tests.support.paths import ROOT
from tests.support.type_checkers import TypeCheckers, editable_environment, site_packages
from torchdata_remote import pipes

assert pipes.__all__  # their names are registered
PIPES = [
    name
    for name, made in tdr.IterDataPipe.functions.items()
    if any(one.__module__.startswith("torchdata_remote.") for one in getattr(made, "args", ())[:1])
]
CHECKERS = ["mypy", "pyright"]

START = """\
import io
from typing import Any

from typing_extensions import assert_type

import torchdata_remote as tdr

urls = tdr.IterableWrapper(["s3://bucket/train/"])
samples = tdr.stream_shards("s3://bucket/train/", seed=0)
files = tdr.stream_files("s3://bucket/files/")


def double(sample: dict[str, Any]) -> tuple[str, int]:
    return sample["txt"], 2


"""

WELL_TYPED = """\
assert_type(samples, tdr.IterDataPipe[dict[str, Any]])
assert_type(files, tdr.IterDataPipe[dict[str, Any]])
assert_type(samples.skipped, tdr.Skipped)
assert_type(samples.decode_sample().to_tuple("jpg").skipped, tdr.Skipped)
grown = tdr.stream_shards("s3://bucket/train/", shuffle=False)
grown = grown.decode_sample()
grown = grown.map(dict)
for chain in (samples, files, urls, samples.decode_sample().map(double).batch(4)):
    chain.set_epoch(3)
assert_type(urls, tdr.IterableWrapper[str])
for url in urls.list_remote(pattern="*.tar"):
    assert_type(url, tdr.RemoteUrl)
for name in urls.list_remote().shuffle_shards(seed=1).sharding_filter_rank():
    assert_type(name, str)
for sample in urls.shard_tar_reader().shuffle_samples(buffer_size=10).decode_sample().label_from_path():
    assert_type(sample, dict[str, Any])
for item in samples.to_tuple("jpg", "cls"):
    assert_type(item, tuple[Any, Any])
assert_type(samples.to_tuple(*["jpg", "cls"]), tdr.pipes.ToTuple)
print(tdr.pipes.ToTuple(samples, "jpg").batch(2))
for shard in samples.write_shards("memory://out/{shard}.tar"):
    assert_type(shard, tdr.ShardInfo)
pairs = samples.map(double)
assert_type(pairs, tdr.IterDataPipe[tuple[str, int]])
assert_type(pairs.shuffle_samples(buffer_size=10), tdr.pipes.ShuffleSamples[tuple[str, int]])
assert_type(pairs.equalize_ranks(mode="drop"), tdr.pipes.EqualizeRanks[tuple[str, int]])
assert_type(pairs.parallel_map(len, num_threads=2), tdr.pipes.ParallelMap[int])
assert_type(urls.flat_map(str.split), tdr.pipes.FlatMap[str])
assert_type(pairs.repeat_epochs(2).skip(1).take(3), tdr.pipes.Take[tuple[str, int]])
for batch in pairs.bucket(2, length=len):
    assert_type(batch, list[tuple[str, int]])
assert_type(samples.pack(8, member="ids"), tdr.pipes.Pack)
assert_type(samples.decode_sample(num_threads=2).parallel_map(double).batch(2), tdr.IterDataPipe[list[tuple[str, int]]])
assert_type(pairs.filter(lambda pair: pair[1] > 2), tdr.IterDataPipe[tuple[str, int]])
assert_type(pairs.batch(4), tdr.IterDataPipe[list[tuple[str, int]]])
assert_type(pairs.batch(4).unbatch(), tdr.IterDataPipe[tuple[str, int]])
assert_type(pairs.batch(4).collate(len), tdr.IterDataPipe[int])
assert_type(pairs.zip(urls), tdr.IterDataPipe[tuple[tuple[str, int], str]])
assert_type(pairs.concat(urls), tdr.IterDataPipe[tuple[str, int] | str])
assert_type(pairs.fork(2), list[tdr.IterDataPipe[tuple[str, int]]])
assert_type(pairs.shuffle().set_seed(1).sharding_filter(), tdr.IterDataPipe[tuple[str, int]])
assert_type(pairs.map(len, input_col=0), tdr.IterDataPipe[Any])
assert_type(tdr.mix({"a": (pairs, 1), "b": (pairs.map(lambda pair: pair), 2)}), tdr.pipes.Mixed[tuple[str, int]])
assert_type(tdr.mix({"a": pairs}, schedule={0: {"a": 1}}, stop=5), tdr.pipes.Mixed[tuple[str, int]])
assert_type(pairs.zip(urls, urls, urls), tdr.IterDataPipe[tuple[tuple[str, int], str, str, str]])
assert_type(pairs.groupby(lambda pair: pair[0]), tdr.IterDataPipe[list[tuple[str, int]]])
assert_type(pairs.groupby(lambda pair: 1, keep_key=True), tdr.IterDataPipe[tuple[int, list[tuple[str, int]]]])
print(tdr.mix({"a": (samples, 1)}, stop="all_exhausted"), samples.equalize_ranks(mode="repeat"))
print(tdr.stateful_loader(samples, multiprocessing_context="spawn"), urls.list_remote().file_reader())
print(tdr.pipes.ShardTarReader(urls), tdr.pipes.ShardTarReader(urls.async_prefetch()))
print(urls.open_files("rb").shard_zip_reader())
print(urls.shard_tar_reader(on_bad_shard=tdr.skip_with_warning).skipped, samples.decode_sample().stats())


class Doubled(tdr.IterDataPipe[int]):
    def __init__(self, source: tdr.IterDataPipe[int]) -> None:
        self.source = source


assert_type(Doubled(tdr.IterableWrapper([1])).map(str), tdr.IterDataPipe[str])
"""

MISSPELT = """\
samples.lable_from_path()
samples.decode_smaple()
samples.decode_sample().to_tupel("jpg", "cls")
samples.shuffle_sample(buffer_size=10)
files.label_from_paths(classes=["cat"])
urls.list_remotes()
urls.shard_tar_raeder()
urls.list_remote(patern="*.tar")
urls.list_remote("*.tar")
urls.list_remote(pattern=3)
urls.list_remote(recursive="no")
urls.list_remote().shuffle_shards(sead=1)
urls.list_remote().shuffle_shards("1")
urls.sharding_filter_rank(rank=0)
urls.sharding_filter_rank(world=2)
urls.async_prefetch(max_inflight=3)
urls.async_prefetch(max_in_flight="3")
urls.async_prefetch(backend="s3fs")
urls.shard_tar_reader(interleaved=4)
urls.shard_tar_reader(on_bad_shard="skip")
urls.shard_zip_reader(nested=True)
urls.file_reader(pattern="*.jpg")
samples.shuffle_samples(buffer_size="10")
samples.equalize_ranks(mode=1)
samples.label_from_path(["cat"])
samples.label_from_path(classes=3)
samples.decode_sample({"jpg": "rgb"})
samples.to_tuple(1, 2)
samples.write_shards()
samples.write_shards("memory://out/{shard}.tar", max_shard_sample=10)
samples.to_tuple("jpg").decode_sample()
image, label, key = next(iter(samples.to_tuple("jpg", "cls")))
samples.batch(4).to_tuple("jpg")
urls.list_remote().decode_sample()
samples.list_remote()
samples.map(double).batch("4")
samples.map(double, column="cls")
samples.map(lambda left, right: left)
samples.filter(lambda sample: sample.key)
samples.shuffle().lable_from_path()
samples.sharding_filter().decode_smaple()
samples.batch(4).unbatch().decode_smaple()
samples.fork(2)[0].decode_smaple()
samples.concat(files).decode_smaple()
samples.zip(files).to_tupel("jpg")
tdr.mix({"a": (samples, 1)}).decode_smaple()
tdr.stream_shrads("s3://bucket/")
tdr.stream_shards("s3://bucket/", sed=0)
tdr.stream_files("s3://bucket/", pattern=4)
tdr.IterableWrapper(3)
samples.shard_tar_reader()
samples.shard_zip_reader()
samples.file_reader()
tdr.pipes.ShardTarReader(samples)
samples.to_tuple()
samples.equalize_ranks(mode="dropp")
tdr.mix({"a": (samples, 1)}, stop="all")
tdr.stateful_loader(samples, multiprocessing_context="forksever")
samples.set_epoch("1")
samples.skippd
"""


def python_blocks_of_readme() -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with an editable install."""
    return editable_environment(tmp_path_factory.mktemp("types"))


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user, with programs that import the package."""
    folder = tmp_path_factory.mktemp("outside")
    for name, code in {
        "readme": python_blocks_of_readme(),
        "well": START + WELL_TYPED,
        "bad": START + MISSPELT,
    }.items():
        (folder / f"{name}.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def checked(outside: Path, python: Path) -> TypeCheckers:
    """What the type checkers find in the user's programs."""
    return TypeCheckers(outside, python)


def test_an_editable_install_is_a_folder_that_tools_find(python: Path) -> None:
    """No import hook, which neither type checkers nor editors run."""
    [path] = site_packages(python.parents[1]).glob("__editable__*")
    assert path.suffix == ".pth"
    assert Path(path.read_text().strip(), "torchdata_remote", "py.typed").is_file()


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_readmes_chains_are_clean(checker: str, checked: TypeCheckers) -> None:
    """A user who pastes them into a strictly checked project sees no error but of a functional name of torchdata."""
    assert "stream_shards" in python_blocks_of_readme()
    assert [one.text for one in checked.errors(checker, "readme.py") if '"enumerate"' not in one.text] == []


@pytest.mark.parametrize("checker", CHECKERS)
def test_types_of_items_survive_a_chain(checker: str, checked: TypeCheckers) -> None:
    """``assert_type`` compares what each pipe yields."""
    assert checked.errors(checker, "well.py") == []


@pytest.mark.parametrize("checker", CHECKERS)
def test_misspelt_chains_are_refused(checker: str, checked: TypeCheckers) -> None:
    """Wrong names, keywords, types of arguments and orders of pipes: each line is an error, and no other line is."""
    first = START.count("\n") + 1
    wanted = {first + number: line for number, line in enumerate(MISSPELT.splitlines())}
    found = {error.line for error in checked.errors(checker, "bad.py")}
    assert [line for number, line in wanted.items() if number not in found] == []
    assert found - wanted.keys() == set()


DOCUMENTED = [*PIPES, "map", "filter", "batch", "shuffle"]
EDITED = "import torchdata_remote as tdr\n\npipe = tdr.stream_shards(['s3://bucket/'])\npipe."


def test_jedi_completes_functional_names(outside: Path) -> None:
    """Each with its parameters and docstring, as Jupyter and many editors show them."""
    project = jedi.Project(outside, added_sys_path=[str(ROOT)])
    script = jedi.Script(EDITED, path=outside / "edited.py", project=project, environment=jedi.InterpreterEnvironment())
    found = {completion.name: completion for completion in script.complete()}
    assert [name for name in DOCUMENTED if f"(functional name: ``{name}``)" not in found[name].docstring()] == []
    shown = found["label_from_path"].docstring()
    assert "label_from_path(*, classes: Classes | Labeller | None=None" in shown
    assert "classes: class names in the order of their numbers" in shown


def test_stub_is_what_the_generator_writes() -> None:
    """So no signature is kept twice; with the docstrings, which editors show for functional names."""
    generator = runpy.run_path(str(ROOT / ".ci" / "make_typed.py"))
    assert [name for name in PIPES if f"(functional name: ``{name}``)" not in generator["stub"]()] == []
    assert generator["stub"]() == generator["STUB"].read_text(), "run python .ci/make_typed.py"
