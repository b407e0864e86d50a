"""Default decoders of files with several arrays or tensors, and of compressed members."""

from __future__ import annotations

import builtins
import bz2
import gzip
import io
import json
import lzma
import pickle
import sys
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from torchdata_remote import IterableWrapper, decoders
from torchdata_remote.errors import DecodeError
from torchdata_remote.formats.decoders import _tensors

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESS: dict[str, Any] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}


def decoded(name: str, data: bytes, more: Any = None) -> Any:
    (sample,) = IterableWrapper([{"__key__": "a", name: data}]).decode_sample(more)
    return sample[name]


def npz_of(arrays: dict[str, Any], *, compress: bool = False, **options: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, **arrays, **options)
    return file.getvalue()


def pt_of(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize("compress", [False, True])
def test_npz_is_a_dict_of_arrays(compress: bool) -> None:
    arrays = {"boxes": np.arange(8.0).reshape(2, 4), "cls": np.array(3), "none": np.zeros((0, 2), np.int8)}
    found = decoded("npz", npz_of(arrays, compress=compress))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    assert found["boxes"].flags.writeable


def test_npz_of_objects_is_refused() -> None:
    with pytest.raises(DecodeError, match="allow_pickle is off"):
        decoded("npz", npz_of({"a": np.array([{}], object)}))


def test_an_npz_of_two_arrays_of_one_name_is_refused() -> None:
    """One of them would be lost."""
    file, array = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(3))
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("a.npy", "a"):
            archive.writestr(name, array.getvalue())
    with pytest.raises(DecodeError, match="two of its arrays have the same name"):
        decoded("npz", file.getvalue())


def test_a_damaged_or_huge_npz_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before memory is allocated for it."""
    data = npz_of({"a": np.zeros(100_000)}, compress=True)
    for damaged in (b"", b"PK\x03\x04", data[:-30], data[:100] + b"\xff" * 20 + data[120:]):
        with pytest.raises(DecodeError):
            decoded("npz", damaged)
    monkeypatch.setattr(_tensors, "MAX_BYTES", 100_000)
    with pytest.raises(DecodeError, match=r"claim 800,128 bytes \(limit 100,000\)"):
        decoded("npz", data)
    encrypted = io.BytesIO()
    with zipfile.ZipFile(encrypted, "w") as archive:
        archive.writestr("a.npy", b"")
    flagged = bytearray(encrypted.getvalue())
    flagged[6] |= 1
    flagged[flagged.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(DecodeError, match="no npz archive, or damaged"):
        decoded("npz", bytes(flagged))


def test_safetensors_is_a_dict_of_tensors() -> None:
    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    found = decoded("safetensors", save(tensors))
    assert sorted(found) == ["a", "b"]
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(DecodeError):
        decoded("safetensors", save(tensors)[:-1])


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("safetensors"):
            raise ImportError(name)
        return imported(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DecodeError, match=r"pip install 'torchdata_remote\[tensors\]'"):
        decoded("safetensors", b"")


class Harmful:
    """What a pickle may run."""

    def __reduce__(self) -> Any:
        return print, ("run",)


@pytest.mark.parametrize("name", ["pt", "pth"])
def test_a_file_of_torch_is_loaded_without_unpickling(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    value: dict[str, Any] = {"x": torch.ones(2), "n": [1, "a"]}
    found = decoded(name, pt_of(value))
    assert torch.equal(found["x"], value["x"])
    assert found["n"] == [1, "a"]
    for harmful in (pt_of(Harmful()), pickle.dumps(Harmful())):
        with pytest.raises(DecodeError, match="which are not unpickled"):
            decoded(name, harmful)
    for damaged in (b"", pt_of(value)[:-20]):
        with pytest.raises(DecodeError, match=r"no file of torch\.save"):
            decoded(name, damaged)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("ending", COMPRESS)
@given(value=st.recursive(st.integers() | st.text(), st.lists, max_leaves=5))
def test_a_compressed_member_is_decoded_by_the_inner_extension(ending: str, value: Any) -> None:
    """Of each compression; complete extensions first."""
    data = COMPRESS[ending](json.dumps(value).encode())
    assert decoded(f"json.{ending}", data) == value
    assert decoded(f"left.json.{ending}", data) == value
    assert decoded(f"left.json.{ending}", data, {"left.json": len}) == len(json.dumps(value))


def test_other_compressed_members_stay_bytes() -> None:
    """``nii.gz``, ``gz``; and those that the user decodes are not touched."""
    data = gzip.compress(b"3")
    for name in ("nii.gz", "gz", "tar.gz"):
        assert decoded(name, data) == data
    assert decoded("cls.gz", data) == 3
    assert decoded("cls.gz", data, {"cls.gz": bytes}) == data
    assert decoded("cls.gz", data, {"gz": bytes}) == data
    assert decoded("nii.gz", data, {"nii": decoders.text}) == "3"


def test_bytes_leaves_members_as_they_are() -> None:
    """As those who read them as bytes write."""
    for name in ("npz", "safetensors", "pt", "pth"):
        assert decoded(name, b"x", {name: bytes}) == b"x"


def test_a_compressed_member_is_checked() -> None:
    with pytest.raises(DecodeError, match="gzip data were expected"):
        decoded("json.gz", b"{}")
    with pytest.raises(DecodeError, match="gzip data were expected"):
        decoded("json.gz", zstd.compress(b"{}"))
    with pytest.raises(DecodeError, match=r"json\.gz"):
        decoded("json.gz", gzip.compress(b"{}" * 500)[:-5])
    with pytest.raises(DecodeError, match=r"max_ratio=100.*has no limits"):
        decoded("txt.gz", gzip.compress(bytes(100 << 20)))
