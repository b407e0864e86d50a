"""Take torch's DataPipes away from each process whose ``PYTHONPATH`` has this folder.

torch's and torchdata's loaders import them, too. Their sources are compiled with empty classes of the same names
instead, of which nothing is an instance: the branches for DataPipes are dead, as if they had been deleted.
"""

from __future__ import annotations

import ast
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name
from types import CodeType, ModuleType
from typing import Any

DATAPIPES = "torch.utils.data.datapipes"
EMPTY = ("torch.utils.data.graph", "torch.utils.data.graph_settings")  # all about DataPipes
NAMES = {
    "DFIterDataPipe",
    "DataChunk",
    "IterDataPipe",
    "MapDataPipe",
    "argument_validation",
    "functional_datapipe",
    "guaranteed_datapipes_determinism",
    "non_deterministic",
    "runtime_validation",
    "runtime_validation_disabled",
}


class _TakeAway(ast.NodeTransformer):
    def __init__(self, package: str, keep_names: bool) -> None:
        self.package, self.keep_names = package, keep_names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:  # ast's name
        module = resolve_name("." * node.level + (node.module or ""), self.package)
        if module.startswith(DATAPIPES) or module in EMPTY:
            gone, left = node.names, []
        elif module == "torch.utils.data":
            gone = [alias for alias in node.names if alias.name in NAMES]
            left = [alias for alias in node.names if alias.name not in NAMES]
        else:
            return node
        replaced: list[ast.stmt] = [ast.ImportFrom(module, left, 0)] if left else []
        if self.keep_names:
            for alias in gone:
                replaced += ast.parse(f"class {alias.asname or alias.name}: pass").body
        return [ast.copy_location(ast.fix_missing_locations(new), node) for new in replaced] or ast.Pass()

    def visit_Assign(self, node: ast.Assign) -> Any:
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__" and not self.keep_names:
            assert isinstance(node.value, ast.List)
            node.value.elts = [name for name in node.value.elts if ast.literal_eval(name) not in NAMES]
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        source = "" if fullname in EMPTY else self.get_source(fullname)
        assert source is not None
        package = fullname if self.is_package(fullname) else fullname.rpartition(".")[0]
        tree = _TakeAway(package, keep_names=fullname != "torch.utils.data").visit(ast.parse(source))
        code: CodeType = compile(ast.fix_missing_locations(tree), self.get_filename(fullname), "exec")
        return code


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if f"{fullname}.".startswith(f"{DATAPIPES}."):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if not f"{fullname}.".startswith(("torch.utils.data.", "torchdata.")):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder())
