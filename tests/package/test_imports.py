"""Importing the package: what it imports, again and in several threads, and beside pipes of the same names."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.support.page_runner import PageRunner, page_runner
from tests.support.paths import ROOT
from torchdata_remote.testing import write_small_shards

PURGE = """
def purge():
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchdata_remote"]:
        del sys.modules[name]
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process in which no warning is overlooked."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def printed(process: subprocess.Popen[str]) -> Any:
    """What a process prints, as JSON."""
    with process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out)


@pytest.fixture(scope="module")
def after_torch() -> Iterator[PageRunner]:
    """What runs programs in processes that have imported torch, and not the package."""
    with page_runner("import torch.utils.data") as started:
        yield started


def told(runner: PageRunner, program: str) -> Any:
    """What a program prints after torch has been imported, as JSON."""
    done = runner.run(program, folder=ROOT)
    assert done.code == 0, done.errors[-3000:]
    return json.loads(done.output)


def test_a_second_import_before_torch_takes_the_place_of_the_first() -> None:
    """By ``reload``, or of modules that were forgotten."""
    program = f"""
import importlib, json, sys
{PURGE}
import torchdata_remote as tdr
tdr = importlib.reload(tdr)
purge()
import torchdata_remote as tdr
from torch.utils.data.datapipes.iter import IterableWrapper
assert type(IterableWrapper(["memory://a/"]).list_remote()) is tdr.pipes.ListRemote
print(json.dumps("done"))
"""
    assert printed(start(program)) == "done"


@pytest.mark.parametrize("forget", [True, False], ids=["purge", "reload"])
def test_a_second_import_after_use_takes_the_place_of_the_first(forget: bool, after_torch: PageRunner) -> None:
    """The functional names build the classes of the last import, whether its pipes have been used or not."""
    again = "purge(); import torchdata_remote as tdr" if forget else "tdr = importlib.reload(tdr)"
    program = f"""
import importlib, json, sys
{PURGE}
import torchdata_remote as tdr
first = tdr.pipes.ShuffleShards
tdr.IterableWrapper(["memory://a/"]).list_remote()
{again}
found = tdr.IterableWrapper(["memory://a/"]).shuffle_shards()
of_names = type(found) is tdr.pipes.ShuffleShards
print(json.dumps([first is tdr.pipes.ShuffleShards, of_names]))
"""
    assert told(after_torch, program) == [not forget, True]


IN_THREADS = """
import builtins, importlib, json, sys, threading
import torchdata_remote as tdr

names = sys.argv[1:]
start, errors, parts = threading.Barrier(len(names)), [], []
imported = builtins.__import__

def watched(name, globals=None, *args):
    by = (globals or {}).get("__name__", "")
    torch = sys.modules.get("torch")
    is_partial = getattr(getattr(torch, "__spec__", None), "_initializing", True)
    if is_partial and name.startswith("torch.") and by.startswith("torchdata_remote"):
        parts.append(by)
    return imported(name, globals, *args)

def use(name):
    start.wait()
    try:
        if name == "torch":
            importlib.import_module(name)
        elif name == "list_remote":
            tdr.IterableWrapper(["memory://a/"]).list_remote()
        else:
            getattr(tdr, name)
    except BaseException as error:
        errors.append(f"{name}: {error!r}")

builtins.__import__ = watched
threads = [threading.Thread(target=use, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([errors, parts]))
"""


def test_threads_may_use_the_package_for_the_first_time_at_once() -> None:
    """torch is imported wholly, by itself, before a part of it: of two half imports neither succeeds."""
    rounds = (
        "stream_shards RemoteImageFolder stateful_loader testing mix list_remote",
        "torch stream_shards RemoteFiles Resumable ShardWriter RecordedStats",
    )
    processes = [start(IN_THREADS, *names.split()) for names in rounds]
    assert [printed(process) for process in processes] == [[[], []]] * len(rounds)


USER_PIPE = """
from torch.utils.data import IterDataPipe, functional_datapipe

@functional_datapipe("to_tuple")
class MyTuple(IterDataPipe):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from map(tuple, self.source)
"""


def test_a_functional_name_that_a_users_pipe_has_already_is_ours_on_our_pipes(
    tmp_path: Path, after_torch: PageRunner
) -> None:
    """Elsewhere it is the user's. All else works; one warning names both."""
    module = tmp_path / "my_pipes.py"
    module.write_text(USER_PIPE)
    program = f"""
import json, sys, warnings
sys.path.insert(0, {str(tmp_path)!r})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import my_pipes
    import torchdata_remote as tdr
    with tdr.ShardWriter("memory://taken/{{shard}}.tar") as writer:
        writer.write({{"__key__": "a", "cls": 1}})
    ours = list(tdr.stream_shards("memory://taken/").decode_sample().to_tuple("__key__", "cls"))
    assert tdr.stream_shards("memory://taken/").to_tuple.__doc__ == tdr.pipes.ToTuple.__doc__
    theirs = list(tdr.IterableWrapper([[1, 2]]).to_tuple())
    same = list(tdr.pipes.ToTuple(tdr.IterableWrapper([{{"cls": 1}}]), "cls"))
    listed = list(tdr.IterableWrapper(["memory://taken/"]).list_remote())
print(json.dumps([ours, theirs, same, listed, [str(warning.message) for warning in caught]]))
"""
    ours, theirs, same, listed, warned = told(after_torch, program)
    assert (ours, theirs, same) == ([["a", 1]], [[1, 2]], [[1]])
    assert listed[0] == "memory://taken/0.tar"
    assert len(warned) == 1
    assert "'to_tuple'" in warned[0]
    assert "my_pipes.MyTuple" in warned[0]
    assert "call the class in torchdata_remote.pipes" in warned[0]


# Imported by none of the processes below
NEVER = (
    "aiobotocore", "aiohttp", "boto3", "botocore", "fsspec", "matplotlib", "PIL", "s3fs", "starlette", "torchdata",
    "granian", "torchdata_remote.cli", "torchdata_remote.testing",
)  # fmt: skip
SHOW = f"print(json.dumps([name for name in {NEVER!r} if name in sys.modules]))"


def test_importing_the_package_imports_neither_torch_nor_another_library() -> None:
    program = """
import json, sys
before = set(sys.modules)
import torchdata_remote
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""
    assert printed(start(program)) == ["torchdata_remote"]


@pytest.mark.parametrize("first", ["package", "torch"])
def test_a_chain_on_torchs_own_pipe_reads_shards_and_imports_no_other_library(
    first: str, tmp_path: Path, after_torch: PageRunner
) -> None:
    write_small_shards(f"{tmp_path}/", num_shards=1, samples_per_shard=2)
    program = f"""
import json, sys
{"import torchdata_remote" * (first == "package")}
from torch.utils.data.datapipes.iter import IterableWrapper
import torchdata_remote
shards = IterableWrapper([{str(tmp_path)!r}]).list_remote(pattern="*.tar").sharding_filter_rank()
assert len(list(shards.async_prefetch().shard_tar_reader())) == 2
{SHOW}
"""
    assert (printed(start(program)) if first == "package" else told(after_torch, program)) == []


def test_local_shards_are_written_and_read_without_torch_and_without_an_http_client(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_bytes(b"one")
    program = f"""
import json, sys
import torchdata_remote as tdr
tdr.shard_dataset({str(tmp_path / "source")!r} + "/", {str(tmp_path)!r} + "/out/{{shard:03d}}.tar", progress=False)
print(json.dumps([name for name in ("urllib3", "http.client", "ssl", "obstore", "torch") if name in sys.modules]))
"""
    assert printed(start(program)) == []


def test_type_checkers_and_the_interpreter_know_the_same_names() -> None:
    """They do not see the import on demand, which would accept every misspelt name."""
    tree = ast.parse((ROOT / "torchdata_remote" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert sorted(homes) == tdr.__all__
    for name, home in homes.items():
        module = importlib.import_module(f"torchdata_remote.{home}" if home else "torchdata_remote")
        assert getattr(module, name) is getattr(tdr, name), name
    assert "__getattr__" not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_modules_import_each_other_relatively() -> None:
    """A copy of the package, as vendors make them, then holds together."""
    files = sorted((ROOT / "torchdata_remote").rglob("*.py"))
    absolute = re.compile(r"^ *(from|import) torchdata_remote\b", re.MULTILINE)
    assert [str(path) for path in files if absolute.search(path.read_text())] == []


_DEPRECATED = """
import sys, warnings
import torch.utils.data as data
from torch.utils.data.datapipes.datapipe import IterDataPipe

def deprecated(name):  # reported for the first caller outside torch
    caller = sys._getframe(2)
    while caller.f_globals["__name__"].startswith(("torch.", "importlib.", "abc")):
        caller = caller.f_back
    place = caller.f_code.co_filename, caller.f_lineno, caller.f_globals["__name__"]
    warnings.warn_explicit(f"DataPipes are deprecated: {name}", FutureWarning, *place)

names = {name: vars(data).pop(name) for name in ("IterDataPipe", "functional_datapipe")}
data.__getattr__ = lambda name: deprecated(name) or names[name]
IterDataPipe.__init_subclass__ = classmethod(lambda cls: deprecated(cls))
warnings.filterwarnings("error", "DataPipes are deprecated")

import torchdata_remote as tdr
assert tdr.IterDataPipe is IterDataPipe
assert list(tdr.IterableWrapper(["memory://a/{0..2}.tar"]).list_remote().sharding_filter_rank().map(len).batch(2))
try:
    class OfModule(IterDataPipe): pass
except FutureWarning as warning:
    print('"%s"' % warning)
"""


def test_a_deprecation_of_torchs_pipes_is_not_reported_for_this_package(after_torch: PageRunner) -> None:
    """torch may warn of imports and subclasses, even by errors: only a user's own subclass is reported."""
    assert told(after_torch, _DEPRECATED) == "DataPipes are deprecated: <class '__main__.OfModule'>"
