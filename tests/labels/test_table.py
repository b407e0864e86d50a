"""The class table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import LabelError
from torchdata_remote.labels import CLASSES_NAME, ClassEntry, classes_json, dump_table, load_table

KEYS = st.text(min_size=1, max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, ClassEntry]:
    """Class tables, also with gaps."""
    ids = draw(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=9))
    keys = draw(st.lists(KEYS, unique=True, min_size=len(ids), max_size=len(ids)))
    return {key: {"id": i, "name": draw(st.text(max_size=8))} for key, i in zip(keys, ids, strict=True)}


@given(tables())
def test_table_round_trip(table: dict[str, ClassEntry]) -> None:
    """Sorted by id, for any names."""
    data = dump_table(table)
    loaded = load_table(data, "memory://a/classes.json")
    assert loaded == table
    assert [entry["id"] for entry in loaded.values()] == sorted(entry["id"] for entry in table.values())
    assert data.endswith(b"}\n")
    assert dump_table(loaded) == data


def test_classes_json_reads_a_table(tmp_path: Path) -> None:
    """Its ids count from 0."""
    table: dict[str, ClassEntry] = {"dog": {"id": 5, "name": "a dog"}, "cat": {"id": 0, "name": "a cat"}}
    (tmp_path / CLASSES_NAME).write_bytes(dump_table(table))
    labeller = classes_json(tmp_path / CLASSES_NAME, id_base=0)
    assert labeller.table == table
    assert labeller("dog/1.jpg") == 5


def test_invalid_table_is_not_written() -> None:
    """It could not be read again."""
    with pytest.raises(LabelError, match="same id"):
        dump_table({"cat": {"id": 0, "name": "cat"}, "dog": {"id": 0, "name": "dog"}})


@pytest.mark.parametrize("data", [b"", b"[]", b'{"cat": 0}', b'{"cat": {"id": -1, "name": "cat"}}'])
def test_invalid_table_document_is_an_error(data: bytes) -> None:
    """It names the URL."""
    with pytest.raises(LabelError) as caught:
        load_table(data, "s3://pets/classes.json")
    assert "s3://pets/classes.json" in str(caught.value)
    assert caught.value.url == "s3://pets/classes.json"
