from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchdata_remote.errors import BadMemberError, ShardReadError
from torchdata_remote.formats.grouping import samples_of
from torchdata_remote.formats.position import ReadPosition
from torchdata_remote.formats.sample import ignored_kind, naming_fault, split_key

URL = "s3://b/t-000.tar"
NAMES = st.text("ab./_A\n", min_size=1, max_size=12) | st.from_regex(r"\A[ab]{1,2}\.(jpg|JPG|cls|seg\.png)\Z")


def _by_the_rules(names: list[str], *, bad: list[str] | None = None) -> list[dict[str, Any]] | None:
    """What the rules give, applied name by name; ``None`` for an error. The data of a member is its number.

    ``bad`` takes the names of bad members, which are left out then.
    """
    samples: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        if ignored_kind(name) is not None:
            continue
        path = name.removeprefix("./")
        key, extension = split_key(path)
        if naming_fault(path) is not None:
            if bad is None:
                return None
            bad.append(name)
            continue
        if not samples or samples[-1]["__key__"] != key:
            if any(sample["__key__"] == key for sample in samples):
                return None
            samples.append({"__key__": key, "__url__": URL})
        if extension in samples[-1]:
            if bad is None:
                return None
            bad.append(name)
            continue
        samples[-1][extension] = bytes([number])
    return samples or None


@given(runs=st.lists(st.lists(NAMES, min_size=1, max_size=5), max_size=4))
def test_runs_are_grouped_as_single_names_are(runs: list[list[str]]) -> None:
    """Samples, order and errors are the same if the names of a batch are grouped one by one."""
    names = [name for run in runs for name in run]
    expected = _by_the_rules(names)
    numbers = iter(range(len(names)))
    given_runs = [(run, [bytes([next(numbers)]) for _ in run]) for run in runs]
    if expected is None:
        with pytest.raises(ShardReadError, match=URL):
            list(samples_of(given_runs, url=URL))
    else:
        assert list(samples_of(given_runs, url=URL)) == expected


@given(runs=st.lists(st.lists(NAMES, min_size=1, max_size=5), max_size=4))
def test_bad_members_are_left_out_one_by_one(runs: list[list[str]]) -> None:
    """Bad names in a batch do not affect the other ones, and each is reported once."""
    names = [name for run in runs for name in run]
    bad: list[str] = []
    expected = _by_the_rules(names, bad=bad)
    numbers = iter(range(len(names)))
    given_runs = [(run, [bytes([next(numbers)]) for _ in run]) for run in runs]
    errors: list[BadMemberError] = []
    if expected is None:
        with pytest.raises(ShardReadError, match=URL) as caught:
            list(samples_of(given_runs, url=URL, on_bad_member=errors.append))
        assert type(caught.value) is ShardReadError
        return
    assert list(samples_of(given_runs, url=URL, on_bad_member=errors.append)) == expected
    assert [error.member for error in errors] == bad
    assert all(error.reason and URL in str(error) and "on_bad_member" in str(error) for error in errors)


def test_grouping_takes_the_data_of_members_one_by_one() -> None:
    """A run's data may be made as they are asked for: a sample is handed on before the next one's data are made."""
    made = []

    def values() -> Any:
        for number in range(4):
            made.append(number)
            yield bytes([number])

    samples = samples_of([(["a.x", "b.x", "c.x", "d.x"], values())], url=URL)
    assert next(samples)["x"] == b"\0"
    assert made == [0, 1]


def test_meta_members_are_counted() -> None:
    """They are skipped and counted."""
    counted: Counter[str] = Counter()
    names = ["__meta__", "a/__info.json__", "a.x"]
    samples = list(samples_of([(names, [b"1", b"2", b"3"])], url=URL, on_skip=lambda kind: counted.update([kind])))
    assert [sample["__key__"] for sample in samples] == ["a"]
    assert counted == {"meta": 2}


def test_the_prefix_is_prepended_to_each_key() -> None:
    """Keys of an archive inside another one begin with its name; errors say which archive it was."""
    assert [sample["__key__"] for sample in samples_of([(["a.x"], [b""])], url=URL, prefix="n01/")] == ["n01/a"]
    with pytest.raises(ShardReadError, match=r"^s3://b/t-000.tar, in 'n01.tar': member"):
        list(samples_of([(["a"], [b""])], url=URL, inside=f"{URL}, in 'n01.tar'"))


def test_many_extensions_do_not_fill_memory() -> None:
    """Extensions are remembered up to a limit, and read rightly beyond it."""
    names = [f"a.{number}" for number in range(3000)]
    (sample,) = samples_of([(names, [b""] * 3000)], url=URL)
    assert len(sample) == 3002


def test_a_remembered_key_takes_100_to_200_bytes() -> None:
    """As the README says, for keys such as n01440764_10026; a set that has just grown takes most."""
    runs = (([f"n01440764_{number:05}.jpg"], [b""]) for number in range(20_001))
    samples = samples_of(runs, url=URL)
    tracemalloc.start()
    try:
        for _ in range(20_000):
            next(samples)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 100 * 20_000 < taken_bytes < 200 * 20_000


MEMBERS = st.builds(
    "{}{}".format,
    st.sampled_from(["a", "b", "c", "a/d", ".", "__e", "a\nb", "n" * 201]),
    st.sampled_from([".x", ".y", ".X", ".x.y", "", ".", "/f.x", "\n.x", "\0.x"]),
)


@given(
    batches=st.lists(st.lists(MEMBERS, min_size=1, max_size=8), max_size=3)
    | st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True).map(
        lambda keys: [
            [f"{key}{end}" for key in keys[i : i + 3] for end in (".x", ".y.z")] for i in range(0, len(keys), 3)
        ]
    ),
    cut=st.integers(0, 5),
)
@example(batches=[["a.x", "b.x", "c.x"], ["d", "x.e.x"]], cut=0)
@example(batches=[["a.x", "a.y", "b.x"], ["b.y", "c.x", "c.y"], ["d.x", "d.y", "a.x"]], cut=1)
def test_members_that_are_grouped_together_give_what_single_ones_do(batches: list[list[str]], cut: int) -> None:
    """Same samples, same positions after each, same members left out, and the same error."""

    def outcome(kind: Any) -> list[Any]:
        position, found = ReadPosition(), list[Any]()
        start = 0

        def members() -> Iterator[Any]:
            nonlocal start
            for names in batches:
                for part in (names[:cut], names[cut:]):
                    if part:
                        position.batch_offset, position.batch_starts = start, range(0, 10 * len(part), 10)
                        start += 10 * len(part)
                        yield part, kind(name.encode() for name in part)

        bad: list[str] = []
        try:
            samples = samples_of(
                members(), url=URL, prefix="p/", on_bad_member=lambda error: bad.append(str(error)), position=position
            )
            for sample in samples:
                found.append((sample, position.current(), len(bad)))
        except ShardReadError as error:
            found.append(str(error))
        return [found, bad]

    assert outcome(list) == outcome(tuple)
