"""The package is imported again, in several threads, and beside pipes of others with the same functional names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

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


def test_a_second_import_before_torch_takes_the_place_of_the_first() -> None:
    """By ``reload``, or of modules that were forgotten: one finder waits for torch, and torch can be imported."""
    program = f"""
import importlib, json, sys
{PURGE}
before = len(sys.meta_path)
import torchdata_remote as tdr
tdr = importlib.reload(tdr)
purge()
import torchdata_remote as tdr
waiting = len(sys.meta_path) - before
from torch.utils.data.datapipes.iter import IterableWrapper
assert type(IterableWrapper(["memory://a/"]).list_remote()) is tdr.ListRemote
print(json.dumps([waiting, len(sys.meta_path) - before]))
"""
    assert printed(start(program)) == [1, 0]


@pytest.mark.parametrize("forget", [True, False], ids=["purge", "reload"])
def test_a_second_import_after_use_takes_the_place_of_the_first(forget: bool) -> None:
    """The functional names build the classes of the last import, whether its pipes have been used or not."""
    again = "purge(); import torchdata_remote as tdr" if forget else "tdr = importlib.reload(tdr)"
    program = f"""
import importlib, json, sys
{PURGE}
import torchdata_remote as tdr
first = tdr.ShuffleShards
tdr.IterableWrapper(["memory://a/"]).list_remote()
{again}
found = tdr.IterableWrapper(["memory://a/"]).shuffle_shards()
of_names = type(found) is tdr.ShuffleShards
module = importlib.reload(sys.modules["torchdata_remote.pipes.shuffle_shards"])
of_module = type(tdr.IterableWrapper(["memory://a/"]).shuffle_shards()) is module.ShuffleShards
print(json.dumps([first is tdr.ShuffleShards, of_names, of_module]))
"""
    assert printed(start(program)) == [not forget, True, True]


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
        if name in ("torch", "torchdata_remote.datasets"):
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
        "stream_shards RemoteImageFolder StatefulLoader testing mix list_remote",
        "torch stream_shards RemoteFiles Resumable ShardWriter RecordedStats",
        "torch torchdata_remote.datasets",
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


@pytest.mark.parametrize("order", ["before the package", "before its pipes", "after its pipes"])
def test_a_functional_name_that_a_users_pipe_has_too_is_ours_on_our_pipes(order: str, tmp_path: Path) -> None:
    """Elsewhere it is the user's. All else works, whatever came first; one warning names both."""
    module = tmp_path / "my_pipes.py"
    module.write_text(USER_PIPE)
    imports = ["import torchdata_remote as tdr", "tdr.ListRemote"]
    imports.insert(["before the package", "before its pipes", "after its pipes"].index(order), "import my_pipes")
    program = f"""
import json, sys, warnings
sys.path.insert(0, {str(tmp_path)!r})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {"; ".join(imports)}
    with tdr.ShardWriter("memory://taken/{{shard}}.tar") as writer:
        writer.write({{"__key__": "a", "cls": 1}})
    ours = list(tdr.stream_shards("memory://taken/").decode_sample().to_tuple("__key__", "cls"))
    assert tdr.stream_shards("memory://taken/").to_tuple.__doc__ == tdr.ToTuple.__doc__
    theirs = list(tdr.IterableWrapper([[1, 2]]).to_tuple())
    same = list(tdr.ToTuple(tdr.IterableWrapper([{{"cls": 1}}]), "cls"))
    listed = list(tdr.IterableWrapper(["memory://taken/"]).list_remote())
places = [warning.filename for warning in caught]
print(json.dumps([ours, theirs, same, listed, [str(warning.message) for warning in caught], places]))
"""
    ours, theirs, same, listed, warned, places = printed(start(program))
    assert (ours, theirs, same) == ([["a", 1]], [[1, 2]], [[1]])
    assert listed[0] == "memory://taken/0.tar"
    assert len(warned) == 1
    assert "'to_tuple'" in warned[0]
    assert "my_pipes.MyTuple" in warned[0]
    assert "torchdata_remote.ToTuple(pipe, ...)" in warned[0]
    assert places == ["<string>" if order == "before the package" else str(module)]
