"""The package's root: what importing it imports, and how its names are found."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import torchdata_remote as tdr
from tests.support.paths import ROOT
from torchdata_remote.testing import write_small_shards

TREE = ast.parse((ROOT / "torchdata_remote" / "__init__.py").read_text())
PIPES = sorted(path.stem for path in (ROOT / "torchdata_remote" / "pipes").glob("[!_]*.py"))

# Imported by none of the processes below
NEVER = (
    "aiobotocore", "aiohttp", "boto3", "botocore", "fsspec", "matplotlib", "PIL", "s3fs", "starlette", "torchdata",
    "granian", "torchdata_remote.cli", "torchdata_remote.service", "torchdata_remote.sharding",
    "torchdata_remote.testing",
)  # fmt: skip
SHOW = f"""
import json, sys
print(json.dumps([name for name in {NEVER!r} if name in sys.modules]))
"""


def printed(program: str) -> object:
    """What a process of its own prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_type_checkers_and_the_interpreter_know_the_same_names() -> None:
    """Each name that is imported for type checkers is public, and is imported from there when it is used."""
    (block,) = (node for node in TREE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f".{node.module or ''}" for node in imports for alias in node.names}
    modules = {name: f"{home}.{name}".replace("..", ".") for name, home in homes.items() if name in tdr._MODULES}
    assert sorted(homes) == tdr.__all__
    assert modules == tdr._MODULES
    assert {name: home for name, home in homes.items() if name not in modules} == tdr._HOME_OF


def test_type_checkers_do_not_see_the_import_on_demand() -> None:
    """They would accept every misspelt name."""
    assert "__getattr__" not in {node.name for node in TREE.body if isinstance(node, ast.FunctionDef)}


def test_unknown_names_raise_attribute_errors() -> None:
    """With what the interpreter needs to suggest another one."""
    with pytest.raises(AttributeError, match="'torchdata_remote' has no attribute 'stream_shard'") as caught:
        tdr.stream_shard  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("stream_shard", tdr)
    assert "stream_shards" in dir(tdr)


def test_every_pipe_is_announced() -> None:
    """The functional names that importing the package registers are those of the pipes."""
    assert sorted(tdr._PIPES) == PIPES


def test_importing_the_package_imports_no_library() -> None:
    """Of this package only what registers functional names and imports the others; all else is Python's own."""
    program = """
import sys
before = set(sys.modules)
import torchdata_remote
names = {name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names}
print(__import__("json").dumps(sorted(names)), end="")
"""
    modules = ("first_import", "functional_names", "shared_names", "stats", "stats.from_environment", "stats.variable")
    core = [f"torchdata_remote.core.{name}" for name in modules]
    assert printed(program) == ["torchdata_remote", "torchdata_remote.core", *core]


@pytest.mark.system
def test_torch_is_imported_for_the_names_that_need_it() -> None:
    """First and wholly; for the other names not at all."""
    program = """
import importlib, json, sys
import torchdata_remote as tdr
homes = {*tdr._HOME_OF.values(), *tdr._MODULES.values()}
for home in homes - set(tdr._IMPORT_TORCH):
    importlib.import_module(home, "torchdata_remote")
print(json.dumps(["torch" in sys.modules, sorted(set(tdr._IMPORT_TORCH) - homes)]))
"""
    assert printed(program) == [False, []]


FIRST = "import torchdata_remote", "from torch.utils.data.datapipes.iter import IterableWrapper"


@pytest.mark.system
@pytest.mark.parametrize("imports", [FIRST, FIRST[::-1]], ids=["package first", "torch first"])
def test_a_chain_on_torchs_own_pipe_reads_shards(imports: tuple[str, str], tmp_path: Path) -> None:
    """Whatever was imported first, and without what a reader does not need."""
    write_small_shards(f"{tmp_path}/", num_shards=1, samples_per_shard=2)
    program = (
        "; ".join(imports)
        + f"""
shards = IterableWrapper([{str(tmp_path)!r}]).list_remote(pattern="*.tar").sharding_filter_rank()
assert len(list(shards.async_prefetch().shard_tar_reader())) == 2
"""
        + SHOW
    )
    assert printed(program) == []


@pytest.mark.system
def test_local_shards_are_written_and_read_without_an_http_client(tmp_path: Path) -> None:
    """urllib3, TLS and Python's own client take as long to import as NumPy, in each process of a job."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_bytes(b"one")
    program = f"""
import json, sys
import torchdata_remote as tdr
tdr.shard_dataset({str(tmp_path / "source")!r} + "/", {str(tmp_path)!r} + "/out/{{shard:03d}}.tar", progress=False)
print(json.dumps([name for name in ("urllib3", "http.client", "ssl", "obstore", "torch") if name in sys.modules]))
"""
    assert printed(program) == []
