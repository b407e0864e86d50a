from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torchdata_remote import World
from torchdata_remote.core.frameworks.call_stack import callers, calling_module, raised_here
from torchdata_remote.core.threads.ordered_map import ordered_map


class _Trainer:
    """Runs a function in its own method."""

    def run(self, function: Any) -> Any:
        return function()


def test_methods_of_a_package_on_the_stack_are_found_innermost_first() -> None:
    """Those of other packages are left out."""
    inner, outer = _Trainer(), _Trainer()
    found = inner.run(lambda: outer.run(lambda: [c for c in callers(__name__) if c is not None]))
    assert found == [outer, inner]
    assert inner.run(lambda: list(callers("torch"))) == []


def test_a_generator_sees_the_stack_of_its_consumer() -> None:
    """A pipe is a generator, which runs inside the caller of ``next``."""
    trainer = _Trainer()

    def pipe() -> Iterator[bool]:
        yield trainer in set(callers(__name__))
        yield trainer in set(callers(__name__))

    items = pipe()
    assert next(items) is False
    assert trainer.run(lambda: next(items)) is True


def test_a_package_with_a_longer_name_is_another_package() -> None:
    """``tests`` is not ``test``."""
    trainer, package = _Trainer(), __name__.partition(".")[0]
    assert trainer in trainer.run(lambda: list(callers(package)))
    assert trainer not in trainer.run(lambda: list(callers(package[:-1])))


def test_the_calling_module_is_the_first_outside_the_package() -> None:
    """Here it is this module, also for an indirect call."""
    assert calling_module() == __name__
    assert _Trainer().run(calling_module) == __name__


def test_an_error_of_a_called_function_is_not_one_of_the_package() -> None:
    """Only errors raised by code of the package itself."""
    assert not raised_here(KeyError("never raised"))
    with pytest.raises(ZeroDivisionError) as of_a_user:
        list(ordered_map([lambda wait: 1 // 0], max_threads=1))
    assert not raised_here(of_a_user.value)
    with pytest.raises(ValueError, match="RANK") as of_the_package:
        World(rank=2, world_size=2)
    assert raised_here(of_the_package.value)
