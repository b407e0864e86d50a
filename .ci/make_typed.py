"""Write ``torchdata_remote/pipes/typed.pyi``: the functional names of the package as typed, documented methods.

    python .ci/make_typed.py            write the file
    python .ci/make_typed.py --check    exit with 1 if it differs from what would be written

A method has the parameters, annotations, defaults and docstring of its pipe's constructor, without the source. The
annotation of the source becomes that of ``self``, so a pipe of samples is refused where URLs are expected. torch's names
are in ``torch_names.pyi``, which is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchdata_remote.pipes.datapipe import DataPipe

ROOT = Path(__file__).parent.parent
PIPES = ROOT / "torchdata_remote" / "pipes"
STUB = PIPES / "typed.pyi"
WIDTH = 120

# Type variables of the stub: items of the source, and what a function makes of them
_TYPE_VARIABLES = ("T_co", "U")

# A pipe that takes names gives tuples of as many items; type checkers know the length up to this number
_NAMES = "*names: str"
_LENGTHS = range(1, 7)

HEAD = '''\
"""What type checkers and editors see of ``typed.py``: the functional names as methods.

Written by ``.ci/make_typed.py`` from the constructors of the pipes. Do not edit.
"""

{imports}

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

class IterDataPipe(TorchNames[T_co]):
    """torch's ``IterDataPipe``, whose functional names are typed methods.

    Annotate with it what returns a chain: ``def chain() -> tdr.IterDataPipe[dict[str, Any]]``. At run time it is torch's
    class itself, and each pipe of torch has the methods.
    """

    @property
    def skipped(self) -> Skipped:
{skipped}

    def set_epoch(self, epoch: int) -> None:
{set_epoch}

'''

FOOT = '''
class IterableWrapper(IterDataPipe[T_co]):
    """Yield the items of an iterable: the start of a chain.

    Args:
        iterable: of items, such as a list of URLs.
        deepcopy: whether each pass iterates over a copy, if the iterable can be copied.
    """

    def __init__(self, iterable: Iterable[T_co], deepcopy: bool = True) -> None: ...
    def __len__(self) -> int: ...
'''


class Imports:
    """Import statements of the stub, by module."""

    def __init__(self) -> None:
        self._names: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, module: str, name: str) -> None:
        """Import a name; modules of this package are given relative to ``pipes``."""
        self._names[module].add(name)

    def add_used(self, source: str, known: dict[str, tuple[str, str]]) -> None:
        """Import the names in an expression.

        Raises:
            LookupError: for a name that is neither builtin nor known.
        """
        for node in ast.walk(ast.parse(source, mode="eval")):
            if isinstance(node, ast.Name) and node.id in known:
                self.add(*known[node.id])
            elif isinstance(node, ast.Name) and node.id not in (*dir(builtins), "IterDataPipe", *_TYPE_VARIABLES):
                raise LookupError(f"{node.id} in {source!r} is not imported by the pipe's module")

    def text(self) -> str:
        """The statements, in the order that ruff wants."""
        standard = sorted(module for module in self._names if not module.startswith("."))  # "" first: plain imports
        own = sorted(
            (module for module in self._names if module.startswith(".")),
            key=lambda module: (-len(module) + len(module.lstrip(".")), module.lstrip(".")),
        )
        plain = self._names.get("", ())
        others = [f"import {name}" for name in sorted(plain) if name not in sys.stdlib_module_names]
        blocks = ["\n".join(map(self._statement, standard)), "\n".join(others), "\n".join(map(self._statement, own))]
        return "\n\n".join(block.strip() for block in blocks if block.strip())

    def _statement(self, module: str) -> str:
        if not module:
            own = [name for name in sorted(self._names[module]) if name in sys.stdlib_module_names]
            return "\n".join(f"import {name}" for name in own)
        names = sorted(self._names[module], key=lambda name: (not name.isupper(), name))
        line = f"from {module} import {', '.join(names)}"
        return line if len(line) <= WIDTH else f"from {module} import (\n    " + ",\n    ".join(names) + ",\n)"


def stub() -> str:
    """The text of the file."""
    imports = Imports()
    for module, name in {
        ("collections.abc", "Iterable"),
        ("typing", "TypeVar"),
        (".torch_names", "TorchNames"),
        ("..formats.error_policy", "Skipped"),
    }:
        imports.add(module, name)
    methods = dict(method for path in sorted(PIPES.glob("[!_]*.py")) for method in methods_of(path, imports))
    head = HEAD.format(
        imports=imports.text(), set_epoch=_docstring(DataPipe.set_epoch), skipped=_docstring(DataPipe.skipped)
    )
    return head + "\n\n".join(methods[name] for name in sorted(methods)) + "\n" + FOOT


def methods_of(path: Path, imports: Imports) -> Iterator[tuple[str, str]]:
    """The functional names of the pipes in a module, each with its method."""
    tree = ast.parse(path.read_text())
    known = {name: home for name, home in _names_of(tree, path.stem).items() if name not in _TYPE_VARIABLES}
    for node in tree.body:
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "functional_datapipe":
                name = ast.literal_eval(decorator.args[0])
                yield name, _method(name, node, _type_variables(tree), f".{path.stem}", known, imports)


def _method(
    name: str,
    node: ast.ClassDef,
    variables: set[str],
    module: str,
    known: dict[str, tuple[str, str]],
    imports: Imports,
) -> str:
    init = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    kind = getattr(importlib.import_module(f"torchdata_remote.pipes{module}"), node.name)
    imports.add(module, node.name)
    source = _items_of_source(init)
    generic = source in variables
    if source != "Any" and not generic:
        imports.add_used(source, known)
    first = "self" if generic or source == "Any" else f"self: IterDataPipe[{source}]"
    parameters = [first, *_parameters(init, kind, imports, known, source if generic else "T_co")]
    returned = node.name
    if generic:
        items = _items_of(node)
        # Of a pipe of lists, for example, the class has the items of the lists as its variable
        is_of_source = re.search(rf"\b{re.escape(source)}\b", items)
        returned += f"[{'T_co' if is_of_source else items}]"
    overloads = [_overload(name, first, number, returned) for number in _LENGTHS if parameters[-1] == _NAMES]
    if overloads:
        imports.add("typing", "overload")
    if overloads:
        parameters[-1:] = ["name: str", "/", _NAMES]  # one at least
    line = f"    def {name}({', '.join(parameters)}) -> {returned}:"
    if len(line) > WIDTH:
        line = f"    def {name}(\n        " + ",\n        ".join(parameters) + f",\n    ) -> {returned}:"
    method = f"{line}\n{_docstring(kind)}"
    return "\n".join([*overloads, f"    @overload\n{method}"] if overloads else [method])


def _overload(name: str, first: str, number: int, returned: str) -> str:
    """The method for a number of names: its items are tuples of that length."""
    names = ", ".join(f"name_{position}: str" for position in range(1, number + 1))
    items = ", ".join(["Any"] * number)
    returned = f"{returned}[tuple[{items}]]"
    line = f"    def {name}({first}, {names}, /) -> {returned}: ..."
    if len(line) > WIDTH:
        line = f"    def {name}(\n        {first}, {names}, /\n    ) -> {returned}: ..."
    return f"    @overload\n{line}"


def _names_of(tree: ast.Module, stem: str) -> dict[str, tuple[str, str]]:
    """Names in a module of ``pipes`` -> where the stub imports them from."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.update({alias.name: ("", alias.name) for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.update({alias.asname or alias.name: (module, alias.name) for alias in node.names})
        elif isinstance(node, ast.Assign):
            found.update({name.id: (f".{stem}", name.id) for name in node.targets if isinstance(name, ast.Name)})
    found.pop("IterDataPipe", None)
    return found


def _type_variables(tree: ast.Module) -> set[str]:
    return {
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "TypeVar"
    }


def _items_of_source(init: ast.FunctionDef) -> str:
    """What the items of the source are, from its annotation ``IterDataPipe[...]``."""
    annotation = init.args.args[1].annotation
    assert isinstance(annotation, ast.Subscript), f"the source of {init.name} has no type of items"
    return ast.unparse(annotation.slice)


def _items_of(node: ast.ClassDef) -> str:
    """What the items of a pipe are, from its first base, such as ``DataPipe[Sample]``."""
    assert isinstance(node.bases[0], ast.Subscript), f"the items of {node.name} have no type"
    return ast.unparse(node.bases[0].slice)


def _parameters(
    init: ast.FunctionDef, kind: type, imports: Imports, known: dict[str, tuple[str, str]], source: str
) -> list[str]:
    """The parameters after the source, with annotations and defaults.

    Args:
        init: the constructor.
        kind: the class.
        imports: of the stub.
        known: names in the module.
        source: the type of the source's items, which is ``T_co`` in the stub if it is a variable.
    """
    args, written = init.args, []
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    nodes = dict(zip(reversed([arg.arg for arg in args.args]), reversed(args.defaults), strict=False))
    nodes.update({arg.arg: node for arg, node in zip(args.kwonlyargs, args.kw_defaults, strict=True) if node})

    def text(arg: ast.arg) -> str:
        assert arg.annotation is not None
        annotation = re.sub(rf"\b{re.escape(source)}\b", "T_co", _written(arg.annotation))
        imports.add_used(annotation, known)
        default = ""
        if arg.arg in nodes:
            default = f" = {_default(nodes[arg.arg], defaults[arg.arg], imports, known)}"
        return f"{arg.arg}: {annotation}{default}"

    written += [text(arg) for arg in args.args[2:]]
    if args.vararg:
        written.append("*" + text(args.vararg))
    elif args.kwonlyargs:
        written.append("*")
    return written + [text(arg) for arg in args.kwonlyargs]


def _written(node: ast.expr) -> str:
    """Source of an expression with the quotes that ruff wants."""
    return ast.unparse(node).replace("'", '"')


def _default(node: ast.expr, value: Any, imports: Imports, known: dict[str, tuple[str, str]]) -> str:
    """A default: numbers as such, because constants elsewhere say nothing to who reads the method."""
    if isinstance(value, int) and type(value) is int:
        return f"{value:_}"
    source = _written(node)
    imports.add_used(source, known)
    return source


def _docstring(kind: object) -> str:
    """The docstring of a class or method, without the source, which is ``self`` here."""
    text = inspect.getdoc(kind) or ""
    text = re.sub(r"^    source_datapipe: .*\n(?:     .*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^Args:\n\n", "", text, flags=re.MULTILINE)
    prefix = "r" if "\\" in text else ""
    return textwrap.indent(f'{prefix}"""{text}\n"""', " " * 8)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the functional names as typed methods.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    wanted = stub()
    if options.check:
        if wanted == STUB.read_text():
            return 0
        print(f"{STUB.relative_to(ROOT)} is out of date: run python .ci/make_typed.py", file=sys.stderr)
        return 1
    STUB.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
