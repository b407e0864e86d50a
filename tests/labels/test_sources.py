"""Where labels come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.servers.s3 import S3Server
from torchdata_remote.errors import LabelError, ObjectNotFoundError
from torchdata_remote.labels import by_number, classes_json, ground_truth, load_table, meta_mat

CLASSES = {"n02119789": {"id": 1, "name": "kit_fox"}, "n02100735": {"id": 2, "name": "English_setter"}}
FILE = "n02100735/n02100735_1.JPEG"


def test_url_path_and_parsed_object_are_equivalent(tmp_path: Path, memory_folder: str) -> None:
    """A path may be a str or a PathLike."""
    file = tmp_path / "classes.json"
    file.write_text(json.dumps(CLASSES))
    with fsspec.open(f"{memory_folder}/classes.json", "wb") as remote:
        remote.write(file.read_bytes())
    for source in (CLASSES, file, str(file), f"file://{file}", f"{memory_folder}/classes.json"):
        labeller = classes_json(source, id_base=1)
        assert labeller(FILE) == 1
        assert labeller.table["n02100735"] == {"id": 1, "name": "English_setter"}


def test_source_on_s3_is_read_with_storage_options(moto: S3Server) -> None:
    """The labeller does not keep them."""
    client, bucket = moto.client(), moto.new_bucket()
    client.put_object(Bucket=bucket, Key="classes.json", Body=json.dumps(CLASSES).encode())
    client.put_object(Bucket=bucket, Key="truth.txt", Body=b"490\n361\n")
    options = moto.storage_options
    by_class = classes_json(f"s3://{bucket}/classes.json", id_base=1, storage_options=options)
    by_line = ground_truth(f"s3://{bucket}/truth.txt", base_name="v_", storage_options=options)
    assert (by_class(FILE), by_line("v_00000002.JPEG")) == (1, 360)
    assert moto.secret not in repr(vars(by_class)) + repr(vars(by_line))
    with pytest.raises(LabelError, match="none of the 2 classes") as caught:
        by_class("cat/1.jpg")
    assert f"s3://{bucket}/classes.json" in str(caught.value)
    assert caught.value.url == f"s3://{bucket}/classes.json"
    with pytest.raises(ObjectNotFoundError):
        classes_json(f"s3://{bucket}/other.json", id_base=1, storage_options=options)


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[1]", b"\xff\xfe\xfd", b'{"a": {"id": 1, "name": "x"}, "a": {"id": 2, "name": "y"}}', b"[" * 100_000],
    ids=["empty", "cut", "list", "no-text", "key-twice", "deep"],
)
def test_invalid_document_is_an_error(tmp_path: Path, document: bytes) -> None:
    """It names the file. A repeated key, of which json keeps the last, is an error too."""
    file = tmp_path / "labels.json"
    file.write_bytes(document)
    with pytest.raises(LabelError) as caught:
        classes_json(file, id_base=1)
    assert str(file) in str(caught.value)
    assert caught.value.url == str(file)
    with pytest.raises(LabelError, match=r"labels\.json"):
        by_number(file, number_base=0)


def test_errors_show_no_credentials() -> None:
    """Nor the query of a signed URL."""
    with pytest.raises(LabelError) as caught:
        load_table(b"{", "https://host/classes.json?X-Amz-Signature=5ec2e7")
    assert "https://host/classes.json" in str(caught.value)
    assert "5ec2e7" not in str(caught.value) + str(caught.value.url)


def test_a_path_of_bytes_is_refused() -> None:
    """Paths are str here."""

    class BytesPath:
        def __fspath__(self) -> bytes:
            return b"/classes.json"

    source: Any = BytesPath()
    with pytest.raises(TypeError, match="bytes"):
        classes_json(source, id_base=1)


@pytest.mark.parametrize("base", ["1", 1.0, None, True])
def test_bases_must_be_ints(base: Any) -> None:
    """Anything else is refused before the source is read."""
    with pytest.raises(TypeError, match="id_base"):
        classes_json(CLASSES, id_base=base)
    with pytest.raises(TypeError, match="number_base"):
        by_number({}, number_base=base)
    with pytest.raises(TypeError, match="id_base"):
        ground_truth([1], base_name="a", id_base=base)


def test_numbers_of_numpy_are_ints() -> None:
    """As parsed objects may hold them."""
    assert classes_json({"a": {"id": np.int64(3), "name": "a"}}, id_base=1)("a.jpg") == 2
    assert by_number({np.int16(5): np.uint8(3)}, number_base=5)("x_1.jpg") == 2  # type: ignore[arg-type]
    assert ground_truth(np.array([3, 4]), base_name="x")("x00000002.jpeg") == 3


@pytest.mark.parametrize("source", [3, {"ILSVRC2012_ID": 1}, None])
def test_source_of_another_type_is_refused(source: Any) -> None:
    """The error names the function."""
    with pytest.raises(LabelError, match="given to meta_mat"):
        meta_mat(source)
    with pytest.raises(LabelError, match="given to ground_truth"):
        ground_truth(source, base_name="a")
    with pytest.raises(LabelError, match="given to by_number"):
        by_number([source], number_base=0)  # type: ignore[arg-type]
