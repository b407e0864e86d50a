"""Members that cannot be part of a sample, in archives that are sound: left out alike by all that reads shards."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.loaders import read_all
from torchdata_remote import World, skip_with_warning
from torchdata_remote.cli import main
from torchdata_remote.errors import BadMemberError, ShardReadError
from torchdata_remote.inspection.contents import inspect_shard
from torchdata_remote.inspection.pictures import pictures
from torchdata_remote.inspection.verification import verify_shards
from torchdata_remote.testing import all_worlds, assert_resumes_everywhere

Member = tuple[str, bytes]
BAD = ["README", "LICENSE", "docs/Makefile", ".backup", "a/.hidden", "/abs.txt", "../up.txt", "x.", "x.__key__"]
NO_EXTENSION = "it has no extension"


def good(number: int, size: int = 3) -> list[Member]:
    """Two members."""
    return [(f"{number:06d}.cls", b"%d" % number), (f"{number:06d}.jpg", bytes([number % 251]) * size)]


def put(folder: str, shards: dict[str, bytes]) -> None:
    fsspec.filesystem("memory").pipe({f"{folder}/{name}": data for name, data in shards.items()})


def without_url(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "__url__"}


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def zip_of(members: list[Member]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, value in members:
            archive.writestr(zipfile.ZipInfo(name), value)
    return data.getvalue()


def test_a_bad_member_is_an_error_or_skipped_but_never_costs_the_shard(memory_folder: str) -> None:
    """The error names the option; with it all samples are read, and the member is counted with a warning."""
    members = [("README", b"about"), *good(0), ("LICENSE", b""), *good(1)]
    put(memory_folder, {"0.tar": pack_tar(members), "1.tar": pack_tar(good(2))})
    with pytest.raises(BadMemberError, match=r"0\.tar.*README.*no extension.*on_bad_member=skip_with_warning"):
        list(tdr.stream_shards(memory_folder, seed=None))
    pipe = tdr.stream_shards(memory_folder, seed=None, on_bad_member=skip_with_warning)
    with pytest.warns(RuntimeWarning, match="README.*left out") as caught:
        keys = [sample["__key__"] for sample in pipe]
    assert keys == ["000000", "000001", "000002"]
    assert len(caught) == 1
    assert isinstance(pipe, tdr.ShardTarReader)
    assert pipe.skipped.bad_members == {NO_EXTENSION: 2}
    assert not pipe.skipped.shards


def test_a_policy_about_shards_alone_drops_the_shard_as_before(memory_folder: str) -> None:
    """And says so."""
    put(memory_folder, {"0.tar": pack_tar([*good(0), ("README", b"")]), "1.tar": pack_tar(good(1))})
    pipe = tdr.stream_shards(memory_folder, seed=None, on_bad_shard=skip_with_warning)
    with pytest.warns(RuntimeWarning, match="rest of the shard is left out"):
        assert [sample["__key__"] for sample in pipe] == ["000001"]
    assert isinstance(pipe, tdr.ShardTarReader)
    assert list(pipe.skipped.shards) == [f"{memory_folder}/0.tar"]


def test_damage_of_a_shard_is_not_a_bad_member(memory_folder: str) -> None:
    """A broken header, a truncated archive, a repeated key."""
    data = bytearray(pack_tar([*good(0), *good(1)]))
    data[1024 + 150] ^= 1
    for wrong in (bytes(data), pack_tar(good(0))[:-1100], pack_tar([*good(0), *good(1), *good(0)])):
        put(memory_folder, {"0.tar": wrong})
        with pytest.raises(ShardReadError) as caught:
            list(tdr.stream_shards(memory_folder, on_bad_member=skip_with_warning))
        assert not isinstance(caught.value, BadMemberError)


@settings(max_examples=30)
@given(
    spots=st.lists(st.tuples(st.integers(0, 120), st.sampled_from(BAD), st.integers(0, 3000)), max_size=12),
    part_bytes=st.sampled_from([700, 5_000, 1 << 20]),
    small=st.booleans(),
    pax=st.booleans(),
)
def test_an_archive_with_bad_members_gives_what_it_gives_without_them(
    spots: list[tuple[int, str, int]], part_bytes: int, small: bool, pax: bool
) -> None:
    """Whichever way a header is read: by windows of plain headers, step by step, or field by field; in tar and zip."""
    samples = [good(number, 3 if small else 900) for number in range(120)]
    members: list[Member] = []
    for number, sample in enumerate(samples):
        members += [(name, b"b" * size) for spot, name, size in spots if spot == number]
        members += sample
    members += [(name, b"b" * size) for spot, name, size in spots if spot == 120]
    folder = "memory://bad-members"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, value in members:
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = len(value), {"comment": "x"} if pax else {}
            archive.addfile(member, io.BytesIO(value))
    unique = {name for name, _ in members}
    put(folder, {"bad.tar": data.getvalue(), "good.tar": pack_tar([one for sample in samples for one in sample])})

    def read(name: str) -> tuple[list[dict[str, Any]], Any]:
        urls = IterableWrapper([f"{folder}/{name}"]).async_prefetch(part_bytes=part_bytes)
        pipe = urls.shard_tar_reader(on_bad_member=lambda error: None)
        return [without_url(sample) for sample in pipe], pipe.skipped

    found, skipped = read("bad.tar")
    assert found == read("good.tar")[0]
    assert sum(skipped.bad_members.values()) == len(spots)
    if len(unique) == len(members):  # a zip names each member once
        put(folder, {"bad.zip": zip_of(members)})
        pipe = IterableWrapper([f"{folder}/bad.zip"]).shard_zip_reader(on_bad_member=lambda error: None)
        assert [without_url(sample) for sample in pipe] == found
        assert sum(pipe.skipped.bad_members.values()) == len(spots)


FOLDERS: dict[str, Callable[[int], list[Member]]] = {
    "first": lambda number: [("README", b"x" * 700), *good(3 * number), *good(3 * number + 1), *good(3 * number + 2)],
    "between": lambda number: [*good(3 * number), ("README", b""), *good(3 * number + 1), *good(3 * number + 2)],
    "within": lambda number: [*good(3 * number)[:1], ("README", b""), *good(3 * number)[1:], *good(3 * number + 1)],
    "last": lambda number: [*good(3 * number), *good(3 * number + 1), *good(3 * number + 2), ("README", b"y" * 600)],
    "twice": lambda number: [*good(3 * number), (f"{3 * number:06d}.JPG", b"again"), *good(3 * number + 1)],
}


@pytest.mark.parametrize("where", FOLDERS)
def test_manifest_index_parts_and_states_agree_with_skipping(memory_folder: str, where: str) -> None:
    """Samples that a manifest counts are those that readers hand out: split, equalized, by number, stopped anywhere."""
    put(memory_folder, {f"{number}.tar": pack_tar(FOLDERS[where](number)) for number in range(3)})
    with pytest.raises(BadMemberError, match="on_bad_member"):
        tdr.index_shards(memory_folder)
    with quiet():
        shards = tdr.index_shards(memory_folder, on_bad_member=skip_with_warning)
        manifest = f"{memory_folder}/index.json"

        def stream(world: World | None = None) -> Any:
            urls = IterableWrapper([manifest]).list_remote().sharding_filter_rank(world=world)
            return urls.shard_tar_reader(on_bad_member=skip_with_warning)

        whole = list(stream(World(0, 1)))
        assert len(whole) == sum(shard.num_samples for shard in shards)
        for ranks in (2, 4, 5):  # more than there are shards: these are split
            parts = [list(stream(world)) for world in all_worlds(ranks, 1)]
            found = sorted((sample for part in parts for sample in part), key=lambda sample: sample["__key__"])
            assert found == whole
            equal = [list(stream(world).equalize_ranks(mode="drop")) for world in all_worlds(ranks, 1)]
            assert len({len(part) for part in equal}) == 1
        assert_resumes_everywhere(lambda: stream(World(0, 1)))
        assert_resumes_everywhere(stream, num_streams=4)
        by_number = tdr.ShardedDataset(memory_folder, on_bad_member=skip_with_warning)
        assert [by_number[number] for number in range(len(by_number))] == whole
        assert sum(by_number.skipped.bad_members.values()) == 3
    plain = tdr.ShardedDataset(memory_folder)
    with pytest.raises(BadMemberError, match="on_bad_member"):
        [plain[number] for number in range(len(plain))]
    found_by = verify_shards(memory_folder)
    assert (found_by.faults, sum(found_by.bad_members.values())) == ([], 3)
    contents = inspect_shard(f"{memory_folder}/0.tar")
    assert contents.num_samples == shards[0].num_samples
    assert sum(contents.bad_members.values()) == 1


def test_verify_and_inspect_count_bad_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They do not stop at them; a manifest that counts otherwise is a fault still."""
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(pack_tar(FOLDERS["first"](number)))
    assert main(["manifest", str(tmp_path)]) == 1
    assert "on_bad_member" in capsys.readouterr().err
    with quiet():
        assert main(["manifest", str(tmp_path), "--on-bad-member", "skip"]) == 0
    assert "2 members left out: it has no extension" in capsys.readouterr().out
    assert main(["verify", str(tmp_path)]) == 0
    assert "2 members cannot be part of a sample: it has no extension" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path)]) == 0
    assert "1 members that cannot be part of a sample: it has no extension" in capsys.readouterr().out
    assert main(["inspect", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["shard"]["bad_members"] == {NO_EXTENSION: 1}
    manifest = json.loads((tmp_path / "index.json").read_bytes())
    manifest["shardlist"][0]["nsamples"] = 4
    (tmp_path / "index.json").write_text(json.dumps(manifest))
    assert main(["verify", str(tmp_path)]) == 1


def test_bad_members_do_not_stop_contact_sheets(memory_folder: str) -> None:
    """They are not in question there."""
    put(memory_folder, {"0.tar": pack_tar(FOLDERS["first"](0))})
    assert [picture.key for picture in pictures(memory_folder, num_pictures=2)] == ["000000", "000001"]


SOURCES: dict[str, dict[str, bytes]] = {
    "an archive": {"0.tar": pack_tar([("README", b"x"), *good(0), ("LICENSE", b""), *good(1)])},
    "archives": {"0.tar": pack_tar([*good(0), ("README", b"")]), "1.tar": pack_tar([("LICENSE", b""), *good(1)])},
    "an archive of archives": {
        "all.tar": pack_tar(
            [("README", b""), ("n0.tar", pack_tar([*good(0), ("LICENSE", b"")])), ("n1.tar", pack_tar(good(1)))]
        )
    },
    "an archive of archives and others": {
        "all.tar": pack_tar(
            [("n0.tar", pack_tar(good(0))), ("about.txt", b""), ("x", b""), ("n1.tar", pack_tar(good(1)))]
        )
    },
    "files": {**dict(good(0)), "README": b"x", **dict(good(1)), "a/.backup": b"y"},
}


@pytest.mark.parametrize("source", SOURCES)
def test_any_source_is_sharded_without_its_bad_members(source: str, memory_folder: str) -> None:
    """Two of them in each; without the option it is an error, before anything is written."""
    put(f"{memory_folder}/from", SOURCES[source])
    template = f"{memory_folder}/to/{{shard}}.tar"
    with pytest.raises(BadMemberError, match="on_bad_member"):
        tdr.shard_dataset(f"{memory_folder}/from/", template, seed=None, progress=False)
    reported: list[BadMemberError] = []
    (shard,) = tdr.shard_dataset(
        f"{memory_folder}/from/", template, seed=None, progress=False, on_bad_member=reported.append
    )
    assert len(reported) == 2
    assert shard.num_samples == 2
    found = list(tdr.stream_shards(f"{memory_folder}/to/", seed=None))
    assert [sample["jpg"] for sample in found] == [b"\0" * 3, b"\1" * 3]


def test_an_index_of_another_policy_is_not_used(memory_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed source is unpacked once, also where the job is stopped; by another policy it is read again."""
    put(f"{memory_folder}/from", {"0.tar.gz": gzip.compress(SOURCES["an archive"]["0.tar"])})
    template = f"{memory_folder}/to/{{shard}}.tar"

    def job(**options: Any) -> Any:
        return tdr.shard_dataset(f"{memory_folder}/from/", template, seed=None, progress=False, **options)

    with monkeypatch.context() as patch:

        def stop(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr("torchdata_remote.sharding.job.Job._write", stop)
        with quiet(), pytest.raises(KeyboardInterrupt):
            job(on_bad_member=skip_with_warning)
    with pytest.raises(BadMemberError):
        job()
    with quiet():
        assert [shard.num_samples for shard in job(on_bad_member=skip_with_warning)] == [2]


def test_the_command_line_leaves_bad_members_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With their number and the reasons."""
    (tmp_path / "0.tar").write_bytes(SOURCES["an archive"]["0.tar"])
    command = ["shard", f"{tmp_path}/0.tar", f"{tmp_path}/to/{{shard}}.tar", "--quiet"]
    assert main(command) == 1
    assert "on_bad_member" in capsys.readouterr().err
    with quiet():
        assert main([*command, "--on-bad-member", "skip"]) == 0
    assert "2 members left out: it has no extension" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*command, "--on-bad-member", "nonsense"])


def test_on_bad_member_is_refused_for_a_dataset() -> None:
    """The option is refused for it, as those about files are."""
    with pytest.raises(TypeError, match="on_bad_member"):
        tdr.shard_dataset([(b"x", 1)], "memory://never/{shard}.tar", on_bad_member=skip_with_warning)


def test_the_error_comes_out_of_a_worker(tmp_path: Path) -> None:
    """With its type and its advice, as torch rebuilds it from its message."""
    (tmp_path / "0.tar").write_bytes(SOURCES["an archive"]["0.tar"])
    pipe = tdr.stream_shards(str(tmp_path), seed=None)
    with pytest.raises(BadMemberError, match="on_bad_member=skip_with_warning"):
        read_all(DataLoader(pipe, batch_size=None, num_workers=1, multiprocessing_context="fork"))
