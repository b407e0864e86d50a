"""Write ``docs/errors/``: one page for each public error class, and a table of all of them.

    python .ci/make_errors.py            write the pages
    python .ci/make_errors.py --check    exit with 1 if a page differs from what would be written

The texts on the pages are real. Each case runs a short program, which must raise the class of its page; the page shows the
message. Cases that need a cluster or a framework quote the message instead. The first paragraph of a page is the first
paragraph of the class docstring, so it has one source.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import inspect
import io
import re
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from torchdata_remote import errors

PAGES = Path(__file__).parent.parent / "docs" / "errors"
_HEADING_CHARACTERS = 110


@dataclass(frozen=True)
class Case:
    """One situation that raises an error.

    Args:
        remedy: what the reader does about it, as Markdown.
        code: program that raises the error. It is shown on the page.
        hidden: program that raises the error, with a server of this module; not shown.
        text: message, where no short program raises the error.
    """

    remedy: str
    code: str = ""
    hidden: str = ""
    text: str = ""


_PHOTOS = """
            import torchdata_remote as tdr
            from torch.utils.data.datapipes.iter import IterableWrapper

            with tdr.ShardWriter("memory://photos/{shard:06d}.tar", max_shard_samples=2, overwrite=True) as writer:
                for i in range(6):
                    writer.write({"__key__": f"dog/{i}", "txt": "a dog"})
"""

CASES: dict[str, list[Case]] = {
    "RemoteDataError": [
        Case(
            "Catch `RemoteDataError` to handle every error of this package in one place. `error.url` is the object or "
            "prefix, without credentials.",
            code="""
            import torchdata_remote as tdr

            list(tdr.stream_shards("memory://no-such-bucket/"))
            """,
        )
    ],
    "UrlError": [
        Case(
            "Pass URLs in a list: `IterableWrapper([url])`. A `str` alone is an iterable of characters.",
            code="""
            import torchdata_remote as tdr
            from torch.utils.data.datapipes.iter import IterableWrapper

            list(IterableWrapper("s3://photos/train/").list_remote())
            """,
        ),
        Case(
            "Check the spelling of the scheme. For a scheme of fsspec, install the package that the message names.",
            code="""
            import torchdata_remote as tdr

            list(tdr.stream_shards("s4://photos/train/"))
            """,
        ),
        Case(
            "Use the name that the message suggests. The names are those of s3fs; `client_kwargs` and `config_kwargs` take "
            "botocore's.",
            code="""
            import torchdata_remote as tdr

            tdr.stream_shards("s3://photos/train/", storage_options={"endpoint": "http://localhost:9000"})
            """,
        ),
        Case(
            "Write two slashes after the scheme, and no white space before it.",
            code="""
            import torchdata_remote as tdr

            list(tdr.stream_shards("s3:/photos/train/"))
            """,
        ),
        Case(
            "Write the name of the bucket after the scheme: `s3://bucket/train/`. A local path needs no scheme.",
            code="""
            import torchdata_remote as tdr

            list(tdr.stream_shards("s3:///train/"))
            """,
        ),
        Case(
            "Write a brace range in ascending order and without a step: `{000000..000099}`.",
            code="""
            import torchdata_remote as tdr

            list(tdr.stream_shards("memory://photos/{9..0}.tar"))
            """,
        ),
    ],
    "EmptyListingError": [
        Case(
            "Check bucket, prefix and pattern with `torchdata-remote ls URL`. A prefix of a folder ends in `/`. Folders "
            "below it are listed with `recursive=True`.",
            code="""
            import torchdata_remote as tdr
            from torch.utils.data.datapipes.iter import IterableWrapper

            list(IterableWrapper(["memory://no-such-bucket/"]).list_remote(pattern="*.tar"))
            """,
        ),
        Case(
            "Take the folder that exists; the message names the nearest one, and what it has.",
            code=_PHOTOS
            + """
            list(tdr.stream_shards("memory://fotos/"))
            """,
        ),
        Case(
            "Read loose files by `stream_files`, or by `RemoteImageFolder`.",
            hidden="""
            import fsspec

            fsspec.filesystem("memory").pipe({"/pets/dog/1.jpg": b"", "/pets/cat/1.jpg": b""})
            list(tdr.stream_shards("memory://pets/"))
            """,
        ),
    ],
    "EmptyShareError": [
        Case(
            "Use fewer workers, or write more and smaller shards (`max_shard_samples=`). Or list the manifest "
            "(`.../index.json`) instead of the folder: then a shard is split among several readers.",
            code=_PHOTOS
            + """
            source = IterableWrapper(["memory://photos/"]).list_remote(pattern="*.tar")
            list(source.sharding_filter_rank(world=tdr.World(rank=0, world_size=2, worker=0, num_workers=4)))
            """,
        ),
    ],
    "UnequalListingError": [
        Case(
            "Start training after all shards are written. List a manifest (`index.json`), or pass "
            "`list_in_rank_0=True` to `stateful_loader`.",
            text="Rank 0 and rank 1 list different objects: ... Wait until everything is written, and list in the same "
            "order everywhere; or list a manifest (index.json), which names the objects once and for all.",
        ),
    ],
    "UnsplitError": [
        Case(
            "Add `.sharding_filter_rank()` after the listing. If every reader must read everything, or you split the URLs "
            "yourself, write `.sharding_filter_rank(split=False)`. See [slots](../concepts/slots-streams-state.md).",
            hidden=_PHOTOS
            + """
            import os
            from unittest import mock

            pipe = IterableWrapper(["memory://photos/"]).list_remote(pattern="*.tar").shard_tar_reader()
            with mock.patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "4"}):
                list(pipe)
            """,
        ),
    ],
    "SplitTwiceError": [
        Case(
            "Under Accelerate pass a `stateful_loader` to `prepare`. Under the transformers `Trainer` use "
            "`RemoteTrainerMixin`. See [trainers](../tasks/trainers.md).",
            text="Resumable: accelerate's IterableDatasetShard would split over the processes what this chain has split "
            "already, so that samples would be lost. Under Accelerate prepare a loader that it leaves as it is: "
            "accelerator.prepare(torchdata_remote.stateful_loader(pipe, batch_size=..., num_workers=...)). ...",
        ),
    ],
    "StorageError": [
        Case(
            "Read the cause at the end of the message. The attributes `url`, `start_byte`, `end_byte`, `etag`, `attempts` "
            "and `elapsed_s` identify the request. An error that may pass is a "
            "[TransientStorageError](TransientStorageError.md).",
            hidden="""
            with answering(400) as url:
                list(tdr.stream_files(f"{url}/cat/1.txt"))
            """,
        ),
        Case(
            "Pass a `cache_dir` that this user can create and write to.",
            code=_PHOTOS
            + """
            source = IterableWrapper(["memory://photos/"]).list_remote(pattern="*.tar")
            list(source.async_prefetch(cache_dir="/dev/null/cache", cache_bytes=1 << 30))
            """,
        ),
    ],
    "ObjectNotFoundError": [
        Case(
            "Compare the name with `torchdata-remote ls`. A brace range names every object of the range, also those that "
            "were never written; a prefix or a manifest names only those that exist.",
            code="""
            import torchdata_remote as tdr

            list(tdr.stream_shards("memory://photos/{000900..000901}.tar"))
            """,
        ),
        Case(
            "Put `list_remote()` between the URL and the reader: a reader takes single objects.",
            code=_PHOTOS
            + """
            list(IterableWrapper(["memory://photos/"]).shard_tar_reader())
            """,
        ),
        Case(
            "The job that wrote the shards has not finished: run it again, it resumes. For shards of another tool, write "
            "the manifest: `torchdata-remote manifest FOLDER`.",
            code="""
            import torchdata_remote as tdr

            tdr.ShardedDataset("memory://no-shards/index.json")
            """,
        ),
    ],
    "AccessDeniedError": [
        Case(
            "Check which credentials are used: `storage_options`, then the AWS environment variables, `~/.aws`, SSO and "
            "role. They need `s3:GetObject`, and `s3:ListBucket` to list. A public bucket needs "
            '`storage_options={"anon": True}`. S3 answers 403 instead of 404 for a missing object if the credentials must '
            "not list.",
            hidden="""
            with answering(403) as url:
                list(tdr.stream_files(f"{url}/cat/1.txt"))
            """,
        ),
    ],
    "ExpiredCredentialsError": [
        Case(
            "Renew the credentials (`aws sso login`, a new session token) and check the clock of the machine. Credentials "
            "that botocore can renew are renewed while training runs; a token in `storage_options` is not.",
            hidden="""
            options = {"key": "k", "secret": "s", "token": "t", "region": "us-east-1"}
            with answering(400, body=EXPIRED) as url:
                list(tdr.stream_files("s3://photos/cat/1.txt", storage_options={**options, "endpoint_url": url}))
            """,
        ),
    ],
    "ObjectExistsError": [
        Case(
            "Choose another folder, or pass `overwrite=True` to replace the shards of this template. "
            "`shard_dataset(append=True)` adds shards to a finished dataset.",
            code=_PHOTOS
            + """
            with tdr.ShardWriter("memory://photos/{shard:06d}.tar") as writer:
                writer.write({"__key__": "cat/1", "txt": "a cat"})
            """,
        ),
        Case(
            "Wait for the other writer, or stop it. If it was killed, start the same `shard_dataset` again, or pass "
            "`overwrite=True`: the new writer takes the folder over, and one that still runs fails.",
            code="""
            import torchdata_remote as tdr

            with tdr.ShardWriter("memory://claimed/{shard}.tar") as first:
                with tdr.ShardWriter("memory://claimed/{shard}.tar") as second:
                    second.write({"__key__": "cat/1", "txt": "a cat"})
            """,
        ),
    ],
    "ObjectChangedError": [
        Case(
            "Do not replace objects while they are read. List again, and start the epoch again. Write new data under a new "
            "prefix. For a server that lastingly has two etags for one object, one in its listing and another one in its "
            "answers, pass on URLs without etags: `list_remote(...).map(str)`. Quotes and the mark of a weak etag (`W/`) make "
            "no difference.",
            code="""
            import fsspec
            import torchdata_remote as tdr
            from torch.utils.data.datapipes.iter import IterableWrapper

            memory = fsspec.filesystem("memory")
            memory.pipe("/changing/cat/1.txt", b"miaow")
            listed = list(IterableWrapper(["memory://changing/"]).list_remote(recursive=True))
            memory.pipe("/changing/cat/1.txt", b"miaow, miaow")
            list(IterableWrapper(listed, deepcopy=False).file_reader())
            """,
        ),
    ],
    "ContentEncodingError": [
        Case(
            "Upload the object again without the header `Content-Encoding`, decompressed or under a name that says how it "
            "is compressed, such as `0.tar.gz`. Tar shards may have any name that ends in `.tar`: their compression is "
            "recognised by content. `aws-chunked`, `UTF-8`, `binary` and `none` are no encodings, and ignored.",
            hidden="""
            with answering(200, {"Content-Encoding": "gzip", "ETag": '"1"'}, body=b"compressed") as url:
                list(tdr.stream_files(f"{url}/cat/1.txt"))
            """,
        ),
    ],
    "TransientStorageError": [
        Case(
            "The request was repeated until the limits of `RetryPolicy` (five minutes without progress by default). Check "
            "whether the store can be reached from this machine. Raise `deadline_s` for a store that is down for longer; "
            "lower `max_in_flight` for a store that answers 503 all the time.",
            hidden="""
            from torch.utils.data.datapipes.iter import IterableWrapper

            policy = tdr.RetryPolicy(max_attempts=3, first_wait_s=0.001)
            with answering(503) as url:
                list(IterableWrapper([f"{url}/cat/1.txt"]).async_prefetch(retry=policy).file_reader())
            """,
        ),
    ],
    "ShardReadError": [
        Case(
            "Check the shard with `torchdata-remote verify`, then write it again. To read the other shards, pass "
            "`on_bad_shard=tdr.skip_with_warning`.",
            code="""
            import fsspec
            import torchdata_remote as tdr

            fsspec.filesystem("memory").pipe("/broken/0.tar", b"this is not a tar archive" * 100)
            list(tdr.stream_shards("memory://broken/0.tar"))
            """,
        ),
        Case(
            "Write the shard again. An empty archive of 1,024 or 10,240 bytes is passed over with a warning.",
            code="""
            import fsspec
            import torchdata_remote as tdr

            fsspec.filesystem("memory").pipe("/crashed/0.tar", bytes(4096))
            list(tdr.stream_shards("memory://crashed/0.tar"))
            """,
        ),
        Case(
            "Store the members of a sample next to each other: `tar --sort=name`. Or write the archive again with "
            "`torchdata-remote shard`.",
            code="""
            import io
            import tarfile

            import fsspec
            import torchdata_remote as tdr

            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w") as tar:
                for name in ["1.jpg", "2.jpg", "1.txt"]:
                    tar.addfile(tarfile.TarInfo(name))
            fsspec.filesystem("memory").pipe("/unsorted/0.tar", file.getvalue())
            list(tdr.stream_shards("memory://unsorted/0.tar"))
            """,
        ),
    ],
    "BadMemberError": [
        Case(
            "Leave the member out with `on_bad_member=tdr.skip_with_warning` (`--on-bad-member skip` on the command line): "
            "one warning for each shard, and all are counted in `reader.skipped.bad_members`. Pass the same option where "
            "the manifest is written and where the shards are read. `stream_shards` and `join` use it for keys that they read "
            "from headers, too; a `select` of your own takes it as well.",
            code="""
            import io
            import tarfile

            import fsspec
            import torchdata_remote as tdr

            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w") as tar:
                for name in ["README", "1.txt"]:
                    tar.addfile(tarfile.TarInfo(name))
            fsspec.filesystem("memory").pipe("/with-readme/0.tar", file.getvalue())
            list(tdr.stream_shards("memory://with-readme/0.tar"))
            """,
        ),
    ],
    "MissingEndError": [
        Case(
            "Usually the upload was cut short: write the shard again. If the tool that wrote it leaves out the "
            "end-of-archive blocks, pass `on_bad_shard=tdr.accept_missing_end`.",
            code="""
            import io
            import tarfile

            import fsspec
            import torchdata_remote as tdr

            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w") as tar:
                tar.addfile(tarfile.TarInfo("1.txt"))
            fsspec.filesystem("memory").pipe("/cut/0.tar", file.getvalue()[:512])  # without the blocks of zeros
            list(tdr.stream_shards("memory://cut/0.tar"))
            """,
        ),
    ],
    "ShardCorruptError": [
        Case(
            "The stored object is damaged; it was fetched twice. Restore it, or write it again. `torchdata-remote verify` "
            "finds all damaged shards of a folder.",
            code=_PHOTOS
            + """
            import fsspec

            memory = fsspec.filesystem("memory")
            damaged = memory.cat("/photos/000000.tar").replace(b"a dog", b"a cat")
            memory.pipe("/photos/000000.tar", damaged)
            list(tdr.stream_shards("memory://photos/index.json"))
            """,
        ),
    ],
    "JoinError": [
        Case(
            "Decide what happens to samples that a set does not have: `how='inner'` leaves them out, `how='left'` reads them "
            "without the members of that set.",
            code=_PHOTOS
            + """
            with tdr.ShardWriter("memory://few-captions/{shard}.tar", overwrite=True) as writer:
                writer.write({"__key__": "dog/0", "caption": "a cat on a chair"})
            sets = {"image": "memory://photos/index.json", "caption": "memory://few-captions/index.json"}
            list(tdr.join(sets))
            """,
        ),
    ],
    "ShardWriteError": [
        Case(
            "Make keys unique within a dataset: put the folder or a number into the key.",
            code="""
            import torchdata_remote as tdr

            with tdr.ShardWriter("memory://new/{shard}.tar", overwrite=True) as writer:
                writer.write({"__key__": "1", "txt": "a cat"})
                writer.write({"__key__": "1", "txt": "a dog"})
            """,
        ),
        Case(
            "A sample is a `dict` with a `str` under `__key__` and at least one member, named by its extension.",
            code="""
            import torchdata_remote as tdr

            with tdr.ShardWriter("memory://new/{shard}.tar", overwrite=True) as writer:
                writer.write({"txt": "a cat"})
            """,
        ),
        Case(
            "Put exactly one field `{shard}` into the base name of the template. Double the braces of other names: "
            "`{{raw}}/{shard}.tar`.",
            code="""
            import torchdata_remote as tdr

            tdr.ShardWriter("memory://new/train.tar")
            """,
        ),
    ],
    "WorkerLostError": [
        Case(
            "Usually the operating system ended the process because memory ran out: use fewer workers or a smaller "
            "`max_shard_bytes`. Start the same call again: finished shards are kept.",
            text="A shard's worker was lost 3 time(s), the last time because ... Finished shards are kept: start the job "
            "again, and it resumes. Was there enough memory for three windows of 64 MiB, or samples, per worker?",
        ),
    ],
    "WorkerStartError": [
        Case(
            "Put what the script does into a function, and call it below the guard. Worker processes that are started by "
            "`forkserver` or `spawn` import the script first. What Python says of it is printed above the error.",
            text="A worker process ended while it started, for the reason printed above. Each worker imports the script: put "
            'what starts workers into a function, and call it below `if __name__ == "__main__":`.',
        ),
        Case(
            "Open files and make locks in the function that uses them, or in the method `__setstate__` of an object, which is "
            "called in the worker. Lambdas, closures and functions of a notebook are sent with the variables that they use.",
            code="""
            import threading

            import torchdata_remote as tdr

            lock = threading.Lock()
            pipe = tdr.IterableWrapper([{"__key__": "0", "txt": b"a dog"}]).sharding_filter_rank()
            pipe = pipe.decode_sample({"txt": (lambda data, lock=lock: len(data))})
            iter(tdr.stateful_loader(pipe, num_workers=1))
            """,
        ),
        Case(
            "Worker processes do not have the objects that this one holds in `memory://`: read them by `thread_loader`, or "
            "write them to a folder.",
            code=_PHOTOS
            + """
            iter(tdr.stateful_loader(tdr.stream_shards("memory://photos/"), num_workers=1))
            """,
        ),
    ],
    "CollateError": [
        Case(
            "Convert images to tensors of equal shape, as torchvision's `v2.PILToTensor()` does after a crop or a resize, or "
            "pass a `collate_fn`. With `batch_size=None` samples are handed out one by one, unchanged.",
            code="""
            import io

            import torchdata_remote as tdr
            from PIL import Image

            file = io.BytesIO()
            Image.new("RGB", (8, 8)).save(file, "png")
            with tdr.ShardWriter("memory://dogs/{shard:06d}.tar", overwrite=True) as writer:
                writer.write({"__key__": "dog/0", "png": file.getvalue(), "cls": 1})
            pipe = tdr.stream_shards("memory://dogs/").decode_sample().to_tuple("png", "cls")
            next(iter(tdr.stateful_loader(pipe, batch_size=1)))
            """,
        ),
        Case(
            "Convert the members to one dtype and shape in the chain, as by "
            '`.map(lambda sample: {**sample, "npy": sample["npy"].astype("int64")})`; pad sequences, crop or resize '
            'images. Tuples have no key: with `to_tuple("npy", "cls", "__key__", "__url__")` the message has it.',
            code="""
            import numpy as np
            import torchdata_remote as tdr

            with tdr.ShardWriter("memory://unlike/{shard:06d}.tar", overwrite=True) as writer:
                writer.write({"__key__": "a", "npy": np.zeros(2, "uint16")})
                writer.write({"__key__": "b", "npy": np.zeros(2, "uint32")})
            pipe = tdr.stream_shards("memory://unlike/", shuffle=False).decode_sample()
            next(iter(tdr.stateful_loader(pipe, batch_size=2)))
            """,
        ),
    ],
    "ManifestError": [
        Case(
            "Write the manifest again: `torchdata-remote manifest --overwrite FOLDER`.",
            code="""
            import fsspec
            import torchdata_remote as tdr

            fsspec.filesystem("memory").pipe("/strange/index.json", b'{"shards": 3}')
            list(tdr.stream_shards("memory://strange/index.json"))
            """,
        ),
        Case(
            "List the manifest instead of the folder. If there is none: `torchdata-remote manifest FOLDER`.",
            code=_PHOTOS
            + """
            list(tdr.stream_shards("memory://photos/{000000..000002}.tar").equalize_ranks(mode="drop"))
            """,
        ),
    ],
    "JobError": [
        Case(
            "Correct the field that the message names. `examples/kubernetes/job.yaml` is a complete job.",
            hidden="""
            render("kind: TrainingJob\\nmetadata:\\n  name: Not_A_Name\\nspec: {}\\n")
            """,
        ),
    ],
    "ServiceError": [
        Case(
            "Without a token the service listens to this machine only. Create one: `openssl rand -hex 32 > token`, then "
            "`torchdata-remote serve --host 0.0.0.0 --token-file token`.",
            text="--host 0.0.0.0 is reachable for others, who could then read, replace and delete all datasets. Pass "
            "--token-file, or leave --host at 127.0.0.1.",
        ),
        Case(
            "Stop the service that has this folder open, or serve another folder. One process serves one local folder.",
            text="/data is served by another process. End that one, or serve another folder.",
        ),
    ],
    "StateError": [
        Case(
            "Build the chain as it was when the state was saved: same shards, seed and pipes. To continue "
            'with replaced shards on purpose, set the state\'s `"listing"` to `None`.',
            code=_PHOTOS
            + """

            def loader(seed):
                return tdr.stateful_loader(tdr.stream_shards("memory://photos/", seed=seed), batch_size=2)


            state = loader(seed=0).state_dict()
            resumed = loader(seed=1)
            resumed.load_state_dict(state)
            next(iter(resumed))
            """,
        ),
        Case(
            "Use the pipes of this package and torch's `map`, `filter`, `batch` and `collate` in a chain that is resumed.",
            code=_PHOTOS
            + """
            from torch.utils.data.datapipes.iter import Concater

            pipe = tdr.stream_shards("memory://photos/")
            list(tdr.Resumable(Concater(pipe, pipe)))
            """,
        ),
    ],
    "SampleError": [
        Case(
            "Repair or remove the damaged shard, then write the manifest again. `equalize_ranks` cannot be combined with a "
            "policy that skips damaged shards: other ranks would wait for the missing samples.",
            code=_PHOTOS
            + """
            import fsspec

            fsspec.filesystem("memory").pipe("/photos/000000.tar", bytes(3072))
            samples = tdr.stream_shards("memory://photos/index.json", on_bad_shard=tdr.skip_with_warning)
            list(samples.equalize_ranks(mode="drop"))
            """,
        ),
        Case(
            'Select files with an extension: `list_remote(pattern="*.jpg")` or `stream_files(pattern="*.jpg")`.',
            code="""
            import fsspec
            import torchdata_remote as tdr

            fsspec.filesystem("memory").pipe({"/loose/README": b"text", "/loose/1.txt": b"text"})
            list(tdr.stream_files("memory://loose/"))
            """,
        ),
    ],
    "DecodeError": [
        Case(
            "The member is damaged, or has the extension of another format. Remove the sample, or pass a decoder of your "
            'own: `decode_sample(decoders={"jpg": function})`. `on_bad_sample=tdr.skip_with_warning` '
            "[skips such samples](../tasks/train-from-shards.md#samples-that-do-not-decode) and counts them.",
            code="""
            import torchdata_remote as tdr
            from torch.utils.data.datapipes.iter import IterableWrapper

            list(IterableWrapper([{"__key__": "cat/1", "jpg": b"not a picture"}]).decode_sample())
            """,
        ),
    ],
    "EncodeError": [
        Case(
            "Convert the value to `bytes` before it is written, or use the extension of its type.",
            code="""
            import torchdata_remote as tdr

            with tdr.ShardWriter("memory://new/{shard}.tar", overwrite=True) as writer:
                writer.write({"__key__": "1", "txt": {1, 2, 3}})
            """,
        ),
    ],
    "LabelError": [
        Case(
            "Add the class to `classes=`, or remove the folder from the listing with a pattern.",
            code="""
            import torchdata_remote as tdr
            from torch.utils.data.datapipes.iter import IterableWrapper

            samples = IterableWrapper([{"__key__": "bird/1", "txt": b"tweet"}])
            list(samples.label_from_path(classes=["cat", "dog"]))
            """,
        ),
    ],
    "MissingKeyError": [
        Case(
            "A key is what samples have under `__key__`: the path in the shard without the extension. Print some of a "
            "shard: `torchdata-remote inspect URL`. Pass `on_missing_key=tdr.skip_with_warning` to select the keys that are "
            "there, as for a table of a larger dataset.",
            code=_PHOTOS
            + """
            urls = IterableWrapper(["memory://photos/index.json"]).list_remote()
            list(urls.select(keys=["dog/1", "1.txt"]))
            """,
        ),
    ],
    "MissingMemberError": [
        Case(
            'Name the alternatives, separated by semicolons: `to_tuple("jpg;jpeg;png", "cls")`. Loose files have no '
            "`cls` before `label_from_path`.",
            code="""
            import torchdata_remote as tdr
            from torch.utils.data.datapipes.iter import IterableWrapper

            list(IterableWrapper([{"__key__": "cat/1", "png": b"..."}]).to_tuple("jpg", "cls"))
            """,
        ),
    ],
}

_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def public_errors() -> list[type[errors.RemoteDataError]]:
    """All error classes of ``torchdata_remote.errors``, in the order of the source."""
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    return [kind for kind in found if issubclass(kind, errors.RemoteDataError)]


def pages() -> dict[str, str]:
    """File name -> Markdown of every page."""
    found = {f"{kind.__name__}.md": page_of(kind) for kind in public_errors()}
    found["index.md"] = overview()
    return found


def overview() -> str:
    """The page that lists all classes."""
    lines = [
        "# Errors",
        "",
        "Every error that this package raises on purpose is a `RemoteDataError` and is in `torchdata_remote.errors`. The",
        "message says where it happened, what was received, what was expected and what to do. Each class also has a builtin",
        "parent, so `except FileNotFoundError` works as usual.",
        "",
        "## How to read an error",
        "",
        "Read the last line first: it is the message of the error. What Python prints above it is, from the top:",
        "",
        "1. with workers, `in a worker:` and the worker's traceback, in which `torch/utils/data` is the machinery around",
        "   the chain, and the other files are pipes and your own functions;",
        "2. after `The above exception was the direct cause`, the traceback of your script, with the line that asked for",
        "   the batch.",
        "",
        "```text",
        "RuntimeError: in a worker:",
        "",
        "Traceback (most recent call last):",
        "  ...",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "train.py", line 12, in main',
        "    for texts, labels in loader:",
        "  ...",
        "torchdata_remote.errors.MissingMemberError: sample 'cat/7' of s3://b/000.tar has no 'png'. It has ['jpg'].",
        "```",
        "",
        "This holds for errors of this package under any loader, and for errors of your functions under `stateful_loader`",
        "and `PrefetchingLoader`. Under torch's own `DataLoader`, the message of a function's error begins with `Caught ... in",
        "DataLoader worker process`, and torch appends `This exception is thrown by __iter__ of` the pipe. If a worker's",
        "error is unclear, run with `num_workers=0`: the same error is raised in your process, where a debugger stops.",
        "",
        "## All errors",
        "",
        "| class | builtin parent | meaning |",
        "|---|---|---|",
    ]
    for kind in public_errors():
        depth = len([parent for parent in kind.__mro__ if parent in public_errors()]) - 1
        indent = "&nbsp;" * 3 * depth  # does not wrap
        parents = ", ".join(f"`{parent.__name__}`" for parent in _builtin_parents(kind))
        lines.append(f"| {indent}[{kind.__name__}]({kind.__name__}.md) | {parents} | {_meaning(kind)} |")
    return "\n".join([*lines, ""])


def page_of(kind: type[errors.RemoteDataError]) -> str:
    """The page of one class."""
    parents = [parent for parent in kind.__bases__ if parent is not Exception]
    named = [f"[{p.__name__}]({p.__name__}.md)" if p in public_errors() else f"`{p.__name__}`" for p in parents]
    lines = [f"# {kind.__name__}", "", _meaning(kind), ""]
    if named:
        lines += [f"Parents: {', '.join(named)}.", ""]
    for case in CASES[kind.__name__]:
        text = message_of(kind, case)
        lines += [f"## {_heading(text)}", ""]
        if case.code:
            lines += ["```py", _program(case.code), "```", ""]
        lines += ["```text", *textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False), "```", ""]
        lines += [*textwrap.wrap(f"**What to do.** {case.remedy}", 118, break_on_hyphens=False), ""]
    return "\n".join(lines)


def message_of(kind: type[errors.RemoteDataError], case: Case) -> str:
    """The message of a case, from running its program.

    Raises:
        AssertionError: if the program does not raise ``kind``.
    """
    if case.text:
        return case.text
    fsspec.filesystem("memory").store.clear()
    names: dict[str, Any] = {"__name__": "page", "answering": answering, "render": render, "EXPIRED": _EXPIRED}
    source = _program(case.code) or "import torchdata_remote as tdr\n" + _program(case.hidden)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            exec(compile(source, f"{kind.__name__}.md", "exec"), names)
    except kind as error:
        return _settled(str(error).partition("\nThis exception is thrown by __iter__")[0])
    raise AssertionError(f"{kind.__name__}: nothing was raised by\n{source}")


@contextlib.contextmanager
def answering(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Iterator[str]:
    """An HTTP server that gives every request the same response; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def render(job: str) -> None:
    """Render a TrainingJob by the command line; raise what it reports."""
    from unittest import mock

    from torchdata_remote.cli import main

    stderr = io.StringIO()
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(job.encode()))), contextlib.redirect_stderr(stderr):
        main(["render", "-"])
    raise errors.JobError(stderr.getvalue().removeprefix("torchdata-remote: ").strip())


def _builtin_parents(kind: type) -> list[type]:
    return [parent for parent in kind.__bases__ if parent.__module__ == "builtins" and parent is not Exception]


def _meaning(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()).replace("``", "`")


def _program(code: str) -> str:
    """A program of the table without its indentation."""
    return textwrap.dedent(code).strip()


def _heading(text: str) -> str:
    """The message in one line, as a heading: it is what a reader searches for."""
    line = " ".join(text.split())
    if len(line) > _HEADING_CHARACTERS:
        line = line[:_HEADING_CHARACTERS].rsplit(" ", 1)[0] + " ..."
    return f"`{line.replace('`', '')}`"


def _settled(text: str) -> str:
    """Replace what differs from run to run: ports, times, process numbers, addresses in memory, host names."""
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://host", text)
    text = re.sub(r"\d+(\.\d+)? s\b", "0.1 s", text)
    text = re.sub(r"process \d+ on \S+,", "process 4711 on host,", text)
    text = re.sub(r"attempt \d+", "attempt 1", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x7f0000000000", text)
    return " ".join(text.split())


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the pages about errors.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    wanted = pages()
    existing = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    if options.check:
        stale = sorted(name for name in wanted.keys() | existing.keys() if wanted.get(name) != existing.get(name))
        for name in stale:
            print(f"docs/errors/{name} is out of date: run python .ci/make_errors.py", file=sys.stderr)
        return 1 if stale else 0
    PAGES.mkdir(exist_ok=True)
    for name in existing.keys() - wanted.keys():
        (PAGES / name).unlink()
    for name, text in wanted.items():
        (PAGES / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
