"""The stub of torch's functional names, which is written by hand."""

from __future__ import annotations

import ast
import inspect

import pytest

import torchdata_remote as tdr
from tests.support.paths import ROOT

TORCH_NAMES = ast.parse((ROOT / "torchdata_remote" / "pipes" / "torch_names.pyi").read_text())


def methods_of(name: str) -> list[ast.FunctionDef]:
    """The overloads of a method in the stub of torch's names."""
    bodies = [node.body for node in TORCH_NAMES.body if isinstance(node, ast.ClassDef)]
    return [node for body in bodies for node in body if isinstance(node, ast.FunctionDef) and node.name == name]


def of_torch() -> list[str]:
    """The functional names that torch registers, or what replaces it."""
    pipes = {name: getattr(function, "args", ()) for name, function in tdr.IterDataPipe.functions.items()}
    modules = {name: args[0].__module__ for name, args in pipes.items() if args}
    homes = ("torch.utils.data.datapipes.iter.", "torchdata_remote.core.")
    return sorted(name for name, module in modules.items() if module.startswith(homes))


@pytest.mark.parametrize("name", of_torch())
def test_torchs_names_have_torchs_parameters(name: str) -> None:
    """What is written by hand in ``torch_names.pyi`` is what torch takes; no name of torch is left untyped."""
    methods = methods_of(name)
    assert methods, f"{name} is missing in torch_names.pyi"
    pipe = getattr(tdr.IterableWrapper([1]), name).func.args[0]
    parameters = list(inspect.signature(pipe).parameters.values())
    variadic = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    taken = {parameter.name for parameter in parameters}
    for method in methods:
        named = {argument.arg for argument in [*method.args.args[1:], *method.args.kwonlyargs]}
        assert named <= taken, f"{name} has no parameter {named - taken}"
        assert not (method.args.vararg or method.args.posonlyargs) or variadic
