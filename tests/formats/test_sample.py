from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchdata_remote.errors import ShardWriteError
from torchdata_remote.formats.sample import (
    _check_with_care,
    check_writable,
    describe,
    extensions,
    naming_fault,
    split_key,
)

NAMES = st.text("aB./_é\0", max_size=12)


@pytest.mark.parametrize(
    ("path", "key", "extension"),
    [
        ("train/000017.jpg", "train/000017", "jpg"),
        ("train/000017.Seg.PNG", "train/000017", "seg.png"),
        ("v1.2/a.jpg", "v1.2/a", "jpg"),
        ("v1.2/README", "v1.2/README", ""),
        ("README", "README", ""),
        ("a.", "a", ""),
        (".hidden", "", "hidden"),
        ("a/.jpg", "", "jpg"),
        ("", "", ""),
        ("É.ÄÖ", "É", "äö"),
    ],
)
def test_the_key_ends_at_the_first_dot_of_the_base_name(path: str, key: str, extension: str) -> None:
    """Dots of folders belong to the key; the extension is the rest, in lower case; empty says there is none."""
    assert split_key(path) == (key, extension)


@given(NAMES)
def test_key_and_extension_make_up_the_path(path: str) -> None:
    """Nothing but the case of the extension is lost."""
    key, extension = split_key(path)
    if key and extension:
        assert f"{key}.{extension}" == path[: len(key) + 1] + path[len(key) + 1 :].lower()
        assert "." not in key.rpartition("/")[2]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a\0.jpg", "NUL"),
        ("/a.jpg", "absolute"),
        ("../a.jpg", '".."'),
        ("a/../b.jpg", '".."'),
        ("a/..", '".."'),
        ("a/.jpg", "dot"),
        ("a", "no extension"),
        ("a.", "no extension"),
        ("a.d/b", "no extension"),
    ],
)
def test_naming_fault_gives_the_reason(path: str, says: str) -> None:
    """The reason names what is wrong."""
    assert says in (naming_fault(path) or "")


@pytest.mark.parametrize("path", ["a.jpg", "a/b.seg.png", "a..b/c.jpg", "..a/b.jpg", "a.x/b.y", "é ü.jpg"])
def test_other_paths_have_no_fault(path: str) -> None:
    """Two dots inside a name lead nowhere."""
    assert naming_fault(path) is None


def test_members_come_sorted_and_without_our_own_names() -> None:
    """The order in a shard does not depend on the order of the dict; ``__key__`` and the like are no members."""
    sample = {"png": 1, "__key__": "a", "cls": 2, "__url__": "u", "__other": 3}
    assert extensions(sample) == ("cls", "png")


@given(key=st.text("aB./_é\0", max_size=8), extension=st.text("aB./_\0", max_size=5))
@example(key="a", extension="")
@example(key="__a", extension="b__")
@example(key="./a", extension="jpg")
def test_what_may_be_written_comes_back_as_it_is(key: str, extension: str) -> None:
    """Whatever passes the check is split into the same key and extension by a reader, and is not passed over."""
    try:
        returned = check_writable({"__key__": key, extension: b""})
    except ShardWriteError:
        return
    path = f"{key}.{extension}"
    assert returned == key
    assert split_key(path) == (key, extension)
    assert naming_fault(path) is None
    assert not path.startswith("./"), "readers drop it"
    base = path.rpartition("/")[2]
    assert not (base.startswith("__") and base.endswith("__")), "readers pass over such a member"


def _outcome(check: Callable[[], str]) -> str:
    try:
        return check()
    except ShardWriteError as error:
        return str(error)


@given(
    key=st.text("aB0./_-é\0\n", max_size=8) | st.text(max_size=5) | st.sampled_from(["__a", "a/", "/a", "a/__b", "-a"]),
    names=st.lists(
        st.text("aB0./_-é\0\n", max_size=5) | st.sampled_from(["jpg", "seg.png", "__x", "b__", "a..b"]), max_size=3
    ),
)
@example(key="__a", names=["b__"])
@example(key="a\n", names=["jpg"])
@example(key="a", names=["jpg\n"])
@example(key="a/", names=["jpg"])
@example(key="a", names=["__x"])
def test_the_fast_check_of_samples_agrees_with_the_slow_one(key: str, names: list[str]) -> None:
    """Most samples need no closer look, and it would find nothing in them."""
    sample = {"__key__": key, **dict.fromkeys(names, b"")}
    assert _outcome(lambda: check_writable(sample)) == _outcome(lambda: _check_with_care(sample, sample["__key__"]))


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"__key__": "a.b", "jpg": b""}, "'a.b'"),
        ({"__key__": "a", "JPG": b""}, "'JPG'"),
        ({"__key__": "../a", "jpg": b""}, "leaves its folder"),
        ({"__key__": "/a", "jpg": b""}, "absolute"),
        ({"__key__": "", "jpg": b""}, "no key"),
        ({"__key__": "a", "": b""}, "no extension"),
        ({"__key__": "a", "x/y": b""}, "'x/y'"),
        ({"__key__": "a"}, "no members"),
        ({"__key__": "a", "__url__": "u"}, "no members"),
        ({"jpg": b""}, "__key__"),
        ({"__key__": 3, "jpg": b""}, "__key__"),
        ({"__key__": "a", 1: b""}, "1"),
        (("a", b""), "tuple"),
        ({"__key__": "\ud800", "jpg": b""}, "ud800"),
        ({"__key__": "\udcc3\udca9", "jpg": b""}, "udcc3"),
    ],
)
def test_a_sample_that_would_come_back_changed_is_refused(sample: Any, says: str) -> None:
    """The error shows which key or extension it is, and why."""
    with pytest.raises(ShardWriteError) as caught:
        check_writable(sample)
    assert says in str(caught.value)


def test_one_bad_member_refuses_the_sample() -> None:
    """A good member beside it does not hide it."""
    with pytest.raises(ShardWriteError, match="'PNG'"):
        check_writable({"__key__": "a", "jpg": b"", "PNG": b""})


def test_a_sample_is_described_by_key_and_shard() -> None:
    """Its URL, if it is known."""
    assert describe({"__key__": "a/1", "__url__": "s3://b/0.tar"}) == "sample 'a/1' of s3://b/0.tar"
    assert "unknown" in describe({"__key__": "a/1"})


def test_a_description_holds_no_signature() -> None:
    """It goes into messages and logs, where the query of a signed URL must not be."""
    described = describe({"__key__": "a", "__url__": "https://host/0.tar?X-Amz-Signature=SECRET"})
    assert "https://host/0.tar" in described
    assert "SECRET" not in described
