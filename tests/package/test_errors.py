"""Errors: each has a builtin parent, keeps its fields in copies and in other processes, and shows no signature."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest
from torch._utils import ExceptionWrapper

from torchdata_remote import errors

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.RemoteDataError)]
MESSAGE = "s3://b/a.tar: got 3, expected 4. Write it again."
BUILTIN_PARENTS = {
    ValueError: (
        "UrlError EmptyShareError UnequalListingError UnsplitError SplitTwiceError ContentEncodingError ShardReadError "
        "BadMemberError MissingEndError ShardCorruptError ShardWriteError ManifestError JobError JoinError StateError "
        "SampleError DecodeError EncodeError"
    ),
    FileNotFoundError: "EmptyListingError ObjectNotFoundError",
    OSError: "StorageError ObjectChangedError",
    PermissionError: "AccessDeniedError ExpiredCredentialsError",
    FileExistsError: "ObjectExistsError",
    ConnectionError: "TransientStorageError",
    RuntimeError: "ServiceError WorkerLostError WorkerStartError",
    LookupError: "LabelError",
    TypeError: "CollateError",
    KeyError: "MissingKeyError MissingMemberError",
}


def _drawn_parents() -> dict[str, str]:
    """Class -> parent, as the drawing in the module's docstring has it."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([ │├└─]*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            parents[match[2]] = above[depth - 1] if depth else "Exception"
    return parents


@pytest.mark.parametrize("kind", ALL)
def test_an_error_is_its_message_and_keeps_class_and_url_in_copies(kind: type[errors.RemoteDataError]) -> None:
    assert (str(kind(MESSAGE)), kind(MESSAGE).url) == (MESSAGE, None)
    error = kind(MESSAGE, url="s3://b/a.tar")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), again.url) == (kind, MESSAGE, "s3://b/a.tar")


@pytest.mark.parametrize("kind", ALL)
def test_an_error_keeps_its_class_out_of_a_dataloader_worker(kind: type[errors.RemoteDataError]) -> None:
    """torch rebuilds the error from one string: the class stays, and fields are None, not missing."""
    try:
        raise kind(MESSAGE, url="s3://b/a.tar")
    except errors.RemoteDataError:
        wrapper = ExceptionWrapper(where="in a worker")  # type: ignore[no-untyped-call]
    with pytest.raises(kind) as caught:
        wrapper.reraise()  # type: ignore[no-untyped-call]
    assert type(caught.value) is kind
    assert MESSAGE in str(caught.value)
    assert "\\n" not in str(caught.value), "the traceback is to be read, not its repr"
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert vars(error) == dict.fromkeys(vars(kind(MESSAGE)))
        assert kind not in STORAGE or vars(error).keys() == {"url", *FIELDS}


STORAGE = [kind for kind in ALL if issubclass(kind, errors.StorageError)]
FIELDS = {"start_byte": 10, "end_byte": 50, "etag": '"v1"', "attempts": 3, "elapsed_s": 6.5}


@pytest.mark.parametrize("kind", STORAGE)
def test_storage_error_pickles_with_its_fields(kind: type[errors.StorageError]) -> None:
    """Range, etag, attempts and seconds are in every copy; without them they are None."""
    error = kind(MESSAGE, url="s3://b/a.tar", start_byte=10, end_byte=50, etag='"v1"', attempts=3, elapsed_s=6.5)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is kind
        assert (str(again), vars(again)) == (MESSAGE, {"url": "s3://b/a.tar", **FIELDS})
    for twin in (copy.copy(error), copy.deepcopy(error)):
        assert (type(twin), str(twin), vars(twin)) == (kind, MESSAGE, vars(error))
    assert vars(kind(MESSAGE)) == {"url": None, **dict.fromkeys(FIELDS)}


def test_transient_error_keeps_what_the_store_asks_for() -> None:
    """No request by default; the attributes survive a copy and are not shared between errors."""
    error = errors.TransientStorageError(MESSAGE)
    assert (error.overloaded, error.retry_after_s) == (False, None)
    error.overloaded, error.retry_after_s = True, 2.5
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (again.overloaded, again.retry_after_s) == (True, 2.5)
    assert (errors.TransientStorageError(MESSAGE).overloaded, errors.TransientStorageError.retry_after_s) == (
        False,
        None,
    )


def test_every_error_has_a_builtin_parent_to_catch() -> None:
    parents = {name: parent for parent, names in BUILTIN_PARENTS.items() for name in names.split()}
    assert parents.keys() == {kind.__name__ for kind in ALL} - {"RemoteDataError"}
    assert [name for name, parent in parents.items() if not issubclass(getattr(errors, name), parent)] == []


def test_docstring_shows_the_whole_class_tree() -> None:
    """The drawing names each class once, under its parent."""
    bases = {kind.__name__: kind.__bases__[0].__name__ for kind in ALL}
    assert _drawn_parents() == bases


def test_docstring_names_the_builtin_parents() -> None:
    """What stands in parentheses in the drawing is the builtin parent."""
    drawn = re.findall(r"(\w+Error) \((\w+)\)", errors.__doc__ or "")
    assert drawn
    for name, builtin in drawn:
        assert [base.__name__ for base in getattr(errors, name).__bases__[1:]] == [builtin], name
    with_builtin = {kind.__name__ for kind in ALL if len(kind.__bases__) > 1}
    assert {name for name, _ in drawn} == with_builtin


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_no_error_shows_the_query_of_an_http_url(kind: type[errors.RemoteDataError]) -> None:
    """It may be a signature; also where a value is shown that holds URLs. What follows the URL stays."""
    signed = "https://host/a.tar?X-Amz-Signature=secret%3D"
    error = kind(f"{signed}: expected one, got {[signed, signed]}. See {signed}.", url=f"{signed}/index.json")
    assert str(error) == f"https://host/a.tar: expected one, got {['https://host/a.tar'] * 2}. See https://host/a.tar."
    assert "secret" not in repr(error) + repr(vars(error)) + repr(pickle.loads(pickle.dumps(error)))
