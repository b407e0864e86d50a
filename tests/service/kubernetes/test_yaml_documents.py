"""YAML in and out."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import JobError
from torchdata_remote.service.kubernetes.yaml_documents import read_documents, write_documents

TEXTS = st.text(max_size=30) | st.sampled_from(
    ["y", "N", "on", "Off", "null", "~", "1:4", "1e3", "0o17", "0x1F", "1_000", "2024-01-01", ".inf", "=", "<<", "- a"]
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def read(text: str | bytes) -> list[Any]:
    return [document for document, _ in read_documents(text, "job.yaml")]


@given(documents=st.lists(st.dictionaries(TEXTS, VALUES, max_size=5), max_size=3))
def test_documents_survive_writing_and_reading(documents: list[dict[str, Any]]) -> None:
    """All texts, numbers and truth values, in order, also with PyYAML's own loader."""
    text = write_documents(documents)
    assert read(text) == documents
    assert list(yaml.safe_load_all(text)) == documents
    assert [list(one) for one in read(text)] == [list(one) for one in documents]
    assert text == write_documents(documents)
    assert text.isascii()


@given(text=TEXTS)
def test_ambiguous_texts_are_quoted(text: str) -> None:
    """YAML parsers differ in what they read as a number, a date or a truth value."""
    line = write_documents([{"value": text}]).removeprefix("---\nvalue: ").rstrip("\n")
    if line == text:
        assert re.match(r"[A-Za-z/]", text)
        assert text.lower() not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    else:
        assert line.startswith(("'", '"', "|"))


def test_no_anchors_are_written() -> None:
    labels = {"team": "vision"}
    assert "&" not in write_documents([{"a": labels, "b": labels}])


def test_a_date_is_read_as_text() -> None:
    """As in Kubernetes."""
    assert read("since: 2024-01-01") == [{"since": "2024-01-01"}]


def test_several_documents_are_numbered() -> None:
    """Empty ones are skipped; a single one has no number."""
    sources = [place.source for _, place in read_documents("---\n---\na: 1\n---\nb: 2\n", "job.yaml")]
    assert sources == ["job.yaml, document 1", "job.yaml, document 2"]
    assert [place.source for _, place in read_documents("a: 1", "job.yaml")] == ["job.yaml"]
    assert read("") == []


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "the key 'a' occurs twice"),
        ("a: [", "expected a TrainingJob"),
        (b"\xff\xfe\x00", "expected a TrainingJob"),
        (b"a: \x80", "expected a TrainingJob"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: !!binary aGk=", "job.yaml: a: got b'hi', expected a text"),
        ("a: {1: x}", "job.yaml: a: got 1, expected text for each key"),
        ("a: .nan", "job.yaml: a: got nan, expected a text, a number"),
        ("a: &a [*a]", "60 levels deep"),
        ("[" * 5_000, "expected a TrainingJob"),
        (BOMB, "at most 100,000 values"),
    ],
)
def test_other_yaml_is_refused(text: str | bytes, message: str) -> None:
    """By an error that names the file."""
    with pytest.raises(JobError, match=r"^job\.yaml") as caught:
        read(text)
    assert message in str(caught.value)


def test_merged_keys_may_be_overridden() -> None:
    """By YAML's merge key."""
    assert read("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}") == [{"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}]


def nested(levels: int, width: int, before: str, after: str) -> str:
    """Documents of a few lines that stand for ``width ** levels`` values."""
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, levels + 1):
        inside = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} {before}{inside}{after}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        nested(9, 10, "{<<: [", "]}"),
        "a: &a {" + ", ".join(f"k{i}: v" for i in range(400)) + "}\nb: {<<: [" + ", ".join(["*a"] * 400) + "]}",
        "a: &a {<<: *a}",
    ],
    ids=["nested", "many copies", "a loop"],
)
def test_merge_keys_that_copy_many_values_are_refused(text: str) -> None:
    """Before its values take memory."""
    tracemalloc.start()
    try:
        with pytest.raises(JobError):
            read(text)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_merge_keys_are_read() -> None:
    """As in YAML 1.1: the mapping's own keys win, then those of the first one."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: {<<: *b}"
    document = read(text)[0]
    assert document["c"] == {"x": 3, "y": 1, "z": 2}
    assert document["d"] == {"y": 2, "z": 2}


@pytest.mark.parametrize("number", ["1" + ":59" * 3000, "0x" + "f" * 5000, "9" * 5000, "1" + ":59" * 3000 + ".5"])
def test_numbers_without_bounds_are_refused(number: str) -> None:
    """Python can neither print nor convert them."""
    with pytest.raises(JobError):
        read(f"a: {number}")
