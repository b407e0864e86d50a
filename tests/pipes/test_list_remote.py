"""``list_remote`` as a pipe; what a source URL stands for is tested in ``tests/fetch/listing/test_sources.py``."""

from __future__ import annotations

import pickle

import fsspec
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from torchdata_remote import ListRemote, RemoteUrl
from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, UrlError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards


def put(folder: str, **names_to_data: bytes) -> None:
    path = folder.removeprefix("memory:/")
    fsspec.filesystem("memory").pipe({f"{path}/{name}": data for name, data in names_to_data.items()})


def test_sources_keep_their_order_with_sorted_objects(memory_folder: str) -> None:
    """Sources keep their order, each with its objects sorted; the same source twice comes twice."""
    put(memory_folder + "/b", z=b"", a=b"1")
    put(memory_folder + "/a", c=b"")
    sources = [f"{memory_folder}/b", f"{memory_folder}/a/c", f"{memory_folder}/b/"]
    expected = [f"{memory_folder}/{path}" for path in ("b/a", "b/z", "a/c", "b/a", "b/z")]
    assert list(IterableWrapper(sources).list_remote()) == expected


def test_urls_have_the_size(memory_folder: str) -> None:
    """What comes is a ``str`` with size; a copy in another process knows it too."""
    put(memory_folder, a=b"123")
    [url] = ListRemote(IterableWrapper([memory_folder]))
    assert isinstance(url, RemoteUrl)
    assert (url, url.size) == (f"{memory_folder}/a", 3)
    copy = pickle.loads(pickle.dumps(url))
    assert (copy, copy.size, copy.etag) == (url, url.size, url.etag)


def test_urls_of_s3_have_the_etag(moto: S3Server) -> None:
    """In S3 they know the etag as well, which reading then insists on."""
    bucket = moto.new_bucket()
    etag = moto.client().put_object(Bucket=bucket, Key="a", Body=b"123")["ETag"]
    [url] = ListRemote(IterableWrapper([f"s3://{bucket}"]), storage_options=moto.storage_options)
    assert (url, url.size, url.etag) == (f"s3://{bucket}/a", 3, etag)


def test_empty_source_is_an_error(memory_folder: str) -> None:
    """Each source must have objects: one that has none is named, even if others have some."""
    put(memory_folder, **{"a.tar": b""})
    pipe = ListRemote(IterableWrapper([memory_folder, memory_folder + "/none"]), pattern="*.tar")
    urls = iter(pipe)
    assert next(urls) == f"{memory_folder}/a.tar"
    with pytest.raises(EmptyListingError, match=rf"{memory_folder}/none: .*pattern='\*\.tar'") as caught:
        next(urls)
    assert isinstance(caught.value, FileNotFoundError)


def test_a_pattern_chooses_among_the_shards_of_a_manifest(memory_folder: str) -> None:
    """A pattern that leaves none of them says what they are called."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=2)
    manifest = IterableWrapper([f"{memory_folder}/index.json"])
    assert list(ListRemote(manifest, pattern="*[02].tar")) == [f"{memory_folder}/00000{i}.tar" for i in (0, 2)]
    with pytest.raises(EmptyListingError, match=r"pattern='\*\.gz'.*3 others, such as '000000\.tar'"):
        list(ListRemote(manifest, pattern="*.gz"))


def test_each_pass_lists_again(memory_folder: str) -> None:
    """Each pass lists again."""
    put(memory_folder, a=b"")
    pipe = ListRemote(IterableWrapper([memory_folder]))
    assert len(list(pipe)) == 1
    put(memory_folder, b=b"")
    assert len(list(pipe)) == 2


def test_building_a_chain_sends_no_request() -> None:
    """Building a chain asks no store, so that it can be sent to another process first."""
    pipe = ListRemote(IterableWrapper(["s3://bucket/"]), storage_options={"endpoint_url": "http://127.0.0.1:1"})
    assert list(pickle.loads(pickle.dumps(pipe)).source_datapipe) == ["s3://bucket/"]


def test_credentials_are_not_in_errors(moto: S3Server) -> None:
    """torch adds constructor arguments to messages: no secret is among them."""
    options = {**moto.storage_options, "secret": "Sup3rS3cretCanary"}
    pipe = ListRemote(IterableWrapper(["s3://no-such-bucket-anywhere/"]), storage_options=options)
    with pytest.raises(ObjectNotFoundError, match="s3://no-such-bucket-anywhere/") as caught:
        list(pipe)
    assert "Sup3rS3cretCanary" not in f"{caught.value} {caught.value!r} {caught.value.args} {pipe!r} {pipe}"


@pytest.mark.parametrize(
    "url", ["nope://bucket/a", "s3://", "", "simplecache::s3://b/a", "file://relative/a", "s3://u:p@bucket/a"]
)
def test_invalid_urls_are_errors(url: str) -> None:
    """A wrong scheme, a missing bucket, a password: a UrlError."""
    with pytest.raises(UrlError):
        list(ListRemote(IterableWrapper([url])))


def test_item_that_is_no_url_is_an_error() -> None:
    """Something else than a ``str`` is named by its type."""
    with pytest.raises(UrlError, match="tuple"):
        list(ListRemote(IterableWrapper([("memory://a", 1)])))  # type: ignore[list-item]


def test_a_chain_resumes_after_any_sample(memory_folder: str) -> None:
    """What was listed is counted by whoever reads it, in one stream or several."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=3)
    sources = IterableWrapper([memory_folder + "/"])
    assert_resumes_everywhere(lambda: sources.list_remote(pattern="*.tar").shard_tar_reader(interleave=2))
    assert_resumes_everywhere(
        lambda: sources.list_remote(pattern="*.tar").sharding_filter_rank().shard_tar_reader(), num_streams=2
    )
