"""Import, write, list and read on what is left of a platform; writes as JSON what came.

Usage: write_and_read.py FOLDER

In a forked process for each platform, as FOLDER/macos.json and FOLDER/windows.json. The libraries are imported first:
each has its own guards, which look at other names than these.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import tempfile
from functools import partial
from typing import Any
from zlib import crc32

import botocore.session
import fsspec
import numpy as np
import obstore.store
import torch.utils.data
import torchdata.stateful_dataloader

LIBRARIES = [botocore.session, fsspec, np, obstore.store, torch.utils.data, torchdata.stateful_dataloader]
NOT_ON_MACOS = (
    "copy_file_range eventfd getxattr listxattr memfd_create pidfd_open posix_fadvise posix_fallocate preadv pwritev "
    "removexattr sched_getaffinity sched_setaffinity setxattr splice O_PATH O_TMPFILE"
)
NOT_ON_WINDOWS = (
    f"{NOT_ON_MACOS} O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC chown fchdir fchmod fchown fork forkpty "
    "getegid geteuid getgid getloadavg getpgid getpgrp getsid getuid initgroups killpg lockf mkfifo nice pread pwrite "
    "readv register_at_fork sched_yield sendfile setpgid setsid statvfs fstatvfs sync uname wait3 wait4 writev"
)
NO_MODULES_ON_WINDOWS = ("fcntl", "grp", "pwd", "resource", "termios")
NO_SIGNALS_ON_WINDOWS = ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2")
LARGE_BYTES = 5 << 20  # mapped


def take_away(platform: str) -> None:
    for name in (NOT_ON_WINDOWS if platform == "windows" else NOT_ON_MACOS).split():
        if hasattr(os, name):
            delattr(os, name)
    vars(tempfile)["_O_TMPFILE_WORKS"] = False  # it looked for O_TMPFILE when it was imported
    if platform == "windows":
        for name in NO_MODULES_ON_WINDOWS:
            sys.modules[name] = None  # type: ignore[assignment]  # which makes its import fail
        for name in NO_SIGNALS_ON_WINDOWS:
            delattr(signal, name)
        for name in [name for name in vars(mmap) if name.startswith(("MAP_", "PROT_", "MADV_"))]:
            delattr(mmap, name)
        os.supports_dir_fd.clear()


def contents() -> list[bytes]:
    return [np.random.default_rng(size).bytes(size) for size in (3, 1000, LARGE_BYTES, LARGE_BYTES + 1, 7)]


def outcome(action: Any) -> Any:
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(platform: str, folder: str) -> None:
    take_away(platform)
    import torchdata_remote as tdr

    told: dict[str, Any] = {"written": list(map(crc32, contents()))}
    told["modules"] = [name for name in NO_MODULES_ON_WINDOWS if sys.modules.get(name)]

    def read(url: str, **options: Any) -> list[int]:
        return [crc32(sample["bin"]) for sample in tdr.stream_shards(url, seed=None, **options)]

    for name, place in {"local": f"{folder}/shards", "memory": "memory://shards"}.items():
        with tdr.ShardWriter(f"{place}/{{shard}}.tar", max_shard_samples=2) as writer:
            for index, data in enumerate(contents()):
                writer.write({"__key__": str(index), "bin": data})
        listed = list(tdr.IterableWrapper([f"{place}/"]).list_remote(pattern="*.tar"))
        by_number: Any = tdr.ShardedDataset(f"{place}/")
        cache = {"cache_dir": f"{folder}/cache of {name}", "cache_bytes": 1 << 30}
        told[name] = {
            "listed": len(listed),
            "read": read(f"{place}/"),
            "by manifest": read(f"{place}/index.json"),
            "files": [len(sample["tar"]) for sample in tdr.stream_files(f"{place}/", pattern="*.tar", seed=None)],
            "by number": [crc32(by_number[index]["bin"]) for index in range(len(by_number))],
            "cached": [outcome(partial(read, f"{place}/", **cache)) for _ in range(2)],
        }
    loader = tdr.stateful_loader(tdr.stream_shards(f"{folder}/shards/", seed=None).to_tuple("__key__"), batch_size=2)
    batches = iter(loader)
    first = next(batches)
    told["stopped"] = [first, *batches]
    tdr.shard_dataset(f"{folder}/shards/*.tar", f"{folder}/again/{{shard}}.tar", max_shard_samples=3)
    told["sharded"] = read(f"{folder}/again/")
    if platform == "windows":
        told["pull"] = outcome(lambda: tdr.pull("datasets://127.0.0.1:1/a", f"{folder}/pulled"))
    with open(f"{folder}.json", "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    for name in ("macos", "windows"):
        child = os.fork()
        if child == 0:
            main(name, f"{sys.argv[1]}/{name}")
            sys.exit()
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name} failed")
