"""At run time, the typed names are torch's class and its registered functions."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import torchdata_remote as tdr
from torchdata_remote.core import iter_datapipe

NAMES = ["list_remote", "shard_tar_reader", "label_from_path"]


def test_typed_names_are_torchs_classes() -> None:
    """So ``isinstance`` holds for every pipe, and ``torch``'s own ``IterableWrapper`` chains as well."""
    assert tdr.IterDataPipe is iter_datapipe.IterDataPipe
    wrapper: object = tdr.IterableWrapper
    assert wrapper is iter_datapipe.IterableWrapper
    assert isinstance(tdr.stream_shards("memory://typed/").map(len), tdr.IterDataPipe)


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_functional_name_is_that_of_its_pipe(name: str) -> None:
    """``help(pipe.list_remote)`` shows the docstring, and its signature is the constructor's."""
    kind = getattr(tdr, "".join(word.capitalize() for word in name.split("_")))
    method = getattr(tdr.IterableWrapper(["memory://typed/"]), name)
    assert (inspect.getdoc(kind) or "?").splitlines()[0] in pydoc.plain(pydoc.render_doc(method))
    assert inspect.signature(method).parameters.keys() == inspect.signature(kind).parameters.keys()


def test_a_misspelt_functional_name_is_an_attribute_error_with_a_suggestion() -> None:
    """Python compares the name with those in ``dir()``, which has the functional names."""
    pipe = tdr.stream_shards("memory://typed/")
    with pytest.raises(AttributeError, match="object has no attribute 'decode_sampel") as caught:
        pipe.decode_sampel()  # type: ignore[attr-defined]
    assert (caught.value.name, caught.value.obj) == ("decode_sampel", pipe)
    assert "decode_sample" in dir(pipe)
