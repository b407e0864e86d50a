"""Hard and symbolic links in archives: readers say them, and ``shard_dataset`` follows them within their archive."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.shard_places import Place, memory_place

FORMATS = [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
# Keys of which none begins another one; long names need extended headers
NAMES = ["a.cls", "a.jpg", "b.jpg", "c/d.txt", "c/e.jpg", f"l/{'n' * 120}.jpg", "m.jpg", "o.jpg"]
KINDS = ["file", "hard", "symbolic", "dangling", "outside", "absolute", "none"]


def pack(folder: Path, form: int = tarfile.PAX_FORMAT) -> bytes:
    """As ``tar --sort=name -cf - .`` packs a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for path in sorted(folder.rglob("*"), key=str):
            tar.add(path, f"./{path.relative_to(folder)}", recursive=False)
    return buffer.getvalue()


def linked_folder(folder: Path) -> bytes:
    """Three samples, and two that consist of links; packed."""
    folder.mkdir()
    for key in "abc":
        (folder / f"{key}.cls").write_text("1")
        (folder / f"{key}.jpg").write_bytes(key.encode() * 700)
    os.link(folder / "a.jpg", folder / "d.jpg")
    os.link(folder / "a.cls", folder / "d.cls")
    (folder / "e.jpg").symlink_to("b.jpg")
    return pack(folder)


def sharded(source: Place | str, to: Place) -> dict[str, bytes]:
    tdr.shard_dataset(source if isinstance(source, str) else source.url, to.template(), progress=False)
    return to.members()


def test_readers_say_the_links_of_a_shard_once(tmp_path: Path) -> None:
    """With their number, a name, and what to do; each shard once, however its samples are read."""
    place, data = memory_place(), linked_folder(tmp_path / "files")
    place.put({"0.tar": data, "1.tar.gz": gzip.compress(data)})
    urls = IterableWrapper([f"{place.url}0.tar", f"{place.url}1.tar.gz"])
    reader = urls.shard_tar_reader(interleave=2)
    with pytest.warns(RuntimeWarning) as said:
        assert sorted(sample["__key__"] for sample in reader) == ["a", "a", "b", "b", "c", "c"]
    assert reader.skipped.members["link"] == 6
    found = [str(one.message) for one in said]
    assert [text.partition(": ")[0].rpartition("/")[2] for text in sorted(found)] == ["0.tar", "1.tar.gz"]
    for text in found:
        assert "links are left out (3, such as './d.cls')" in text
        assert "tar --hard-dereference --dereference" in text


@pytest.mark.parametrize("packed", [lambda data: data, gzip.compress], ids=["tar", "gz"])
def test_shard_dataset_writes_the_samples_of_the_folder(tmp_path: Path, packed: object) -> None:
    """Of an archive as of the folder from which it was packed, in the same order, and without a word."""
    data = linked_folder(tmp_path / "files")
    place = memory_place()
    place.put({"hard.tar": packed(data)})  # type: ignore[operator]
    of_folder = sharded(f"{tmp_path}/files/", memory_place())
    assert len(of_folder) == 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sharded(place, memory_place()) == of_folder
        to = memory_place()
        tdr.shard_dataset(f"{place.url}hard.tar", to.template(), seed=None, progress=False)
    ((_, members),) = to.shards().items()
    assert [name for name, _ in members] == sorted(of_folder)


def test_links_in_each_of_several_archives_are_followed(tmp_path: Path) -> None:
    place, to, data = memory_place(), memory_place(), linked_folder(tmp_path / "files")
    place.put({f"{number}.tar": data for number in range(3)})
    of_folder = sharded(f"{tmp_path}/files/", memory_place())
    assert sharded(place, to) == {f"{at}/{name}": value for at in range(3) for name, value in of_folder.items()}


def test_a_manifest_that_counts_what_readers_read_is_accepted(tmp_path: Path) -> None:
    """Although there are more samples, which consist of links."""
    place = memory_place()
    place.put({"0.tar": linked_folder(tmp_path / "files")})
    with pytest.warns(RuntimeWarning, match="links are left out"):
        assert [shard.num_samples for shard in tdr.index_shards(place.url)] == [3]
    assert len(sharded(place, memory_place())) == 9


@settings(max_examples=15)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7)), min_size=8, max_size=8),
    form=st.sampled_from(FORMATS),
    is_compressed=st.booleans(),
)
@example(kinds=[("symbolic", 1), ("symbolic", 0), *[("file", 0)] * 6], form=tarfile.GNU_FORMAT, is_compressed=False)
@example(
    kinds=[("dangling", 0)] * 2 + [("outside", 0)] * 2 + [("file", 0)] * 4, form=tarfile.PAX_FORMAT, is_compressed=True
)
def test_links_are_followed_within_their_archive_only(
    kinds: list[tuple[str, int]], form: int, is_compressed: bool
) -> None:
    """Chains, forward ones, long ones; cycles and those that lead out are left out, with a warning."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "files")
        Path(root, "outside.jpg").write_bytes(b"secret")
        for name, (kind, number) in zip(NAMES, kinds, strict=True):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            target = folder / NAMES[number]
            if kind == "file":
                path.write_bytes(name.encode() * 40)
            elif kind == "hard" and os.path.isfile(target) and not target.is_symlink():
                os.link(target, path)
            elif kind == "symbolic":
                path.symlink_to(os.path.relpath(target, path.parent))
            elif kind == "dangling":
                path.symlink_to("nothing.jpg")
            elif kind == "outside":
                path.symlink_to(os.path.relpath(folder.parent / "outside.jpg", path.parent))
            elif kind == "absolute":
                path.symlink_to(target)
        (folder / "z.jpg").write_bytes(b"always there")
        data, expected, num_lost = pack(folder, form), {}, 0
        for name in [*NAMES, "z.jpg"]:
            path = folder / name
            leads_out = path.is_symlink() and _leads_out(path, folder)
            if path.is_file() and not leads_out:
                expected[name] = path.read_bytes()
            num_lost += path.is_symlink() and name not in expected
    place = memory_place()
    place.put({"0.tar": gzip.compress(data) if is_compressed else data})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert sharded(place, memory_place()) == expected
    assert [f"left out ({num_lost}, such as" in str(one.message) for one in said] == [True] * (num_lost > 0)


def _leads_out(path: Path, folder: Path) -> bool:
    """Whether one of the links on the way is absolute, or leads out of the folder."""
    for _ in range(len(NAMES) + 1):
        if not path.is_symlink():
            return not path.is_relative_to(folder)
        to = os.readlink(path)
        if os.path.isabs(to):
            return True
        path = Path(os.path.normpath(path.parent / to))
    return True


def test_links_to_folders_are_left_out_with_a_warning(tmp_path: Path) -> None:
    """They are counted, and so is a link whose way back from a folder is not known."""
    (folder := tmp_path / "files").mkdir()
    (folder / "cats").mkdir()
    (folder / "cats" / "1.jpg").write_bytes(b"cat")
    (folder / "also").symlink_to("cats")
    (folder / "b.jpg").symlink_to("also/../cats/1.jpg")
    place = memory_place()
    place.put({"0.tar": pack(folder)})
    with pytest.warns(RuntimeWarning, match=r"left out \(2, such as '\./also'\)"):
        assert sharded(place, memory_place()) == {"cats/1.jpg": b"cat"}


@settings(max_examples=15)
@given(size=st.integers(1, 3 << 20), number=st.integers(2, 5))
def test_linked_members_of_any_size_are_whole(size: int, number: int) -> None:
    """The bytes of one member are those of several, which arrive in pieces."""
    data, buffer = bytes(range(251)) * (size // 251 + 1), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for at in range(number):
            info = tarfile.TarInfo(f"{at}.bin")
            info.type, info.linkname = (tarfile.REGTYPE, "") if at == 0 else (tarfile.SYMTYPE, "0.bin")
            info.size = 0 if at else size
            tar.addfile(info, io.BytesIO(data[:size]))
    place = memory_place()
    place.put({"0.tar": buffer.getvalue()})
    assert sharded(place, memory_place()) == {f"{at}.bin": data[:size] for at in range(number)}
