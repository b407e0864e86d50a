"""One name for each pipe everywhere: functional name, class, signature, docstring and manual agree."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.support.paths import ROOT
from torchdata_remote import pipes


def functional_names() -> dict[str, Any]:
    """Each functional name of this package, with its class."""
    registered = {name: getattr(made, "args", (None,))[0] for name, made in tdr.IterDataPipe.functions.items()}
    return {name: cls for name, cls in registered.items() if cls and cls.__module__.startswith("torchdata_remote.")}


PIPES = functional_names()
REFERENCE = (ROOT / "docs" / "reference" / "pipes.md").read_text()


def test_all_pipes_are_registered() -> None:
    assert len(PIPES) >= 24


@pytest.mark.parametrize("name", PIPES)
def test_a_functional_name_has_a_class_a_docstring_with_an_example_and_a_row_in_the_manual(name: str) -> None:
    cls = PIPES[name]
    assert cls.__name__ == "".join(word.capitalize() for word in name.split("_"))
    assert getattr(pipes, cls.__name__) is cls
    assert issubclass(cls, tdr.IterDataPipe)
    text = inspect.getdoc(cls) or ""
    assert f"(functional name: ``{name}``)" in text
    assert "Yields:" in text
    assert ">>> " in text.partition("Example:")[2]  # which pytest runs as a doctest
    assert re.search(rf"^::: torchdata_remote\.(pipes\.)?{cls.__name__}$", REFERENCE, re.MULTILINE)


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_takes_one_argument_by_position_at_most_and_describes_all(name: str) -> None:
    first, *others = inspect.signature(PIPES[name]).parameters.values()
    assert first.name == "source_datapipe"
    assert sum(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in others) <= 1
    text = inspect.getdoc(PIPES[name]) or ""
    assert [one.name for one in (first, *others) if not re.search(rf"^\s+\*?{one.name}: ", text, re.MULTILINE)] == []


def test_public_names_are_sorted_and_each_exists() -> None:
    assert list(tdr.__all__) == sorted(tdr.__all__)
    assert [name for name in tdr.__all__ if not hasattr(tdr, name)] == []
    assert set(tdr.__all__) <= set(dir(tdr))


def test_an_unknown_name_is_an_attribute_error_from_which_another_can_be_suggested() -> None:
    with pytest.raises(AttributeError, match="'torchdata_remote' has no attribute 'stream_shard'") as caught:
        tdr.stream_shard  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("stream_shard", tdr)
