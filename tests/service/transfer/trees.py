"""Trees of files, small and of any names."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from torchdata_remote import RetryPolicy
from torchdata_remote.service.transfer import Transferred, pull, push
from torchdata_remote.service.transfer.names import LOCK_NAME, STATE_NAME

PART_BYTES = 64
Tree = dict[str, bytes]
_QUICK: dict[str, Any] = {"retry": RetryPolicy(deadline_s=20, first_wait_s=0.01), "max_in_flight": 4}

_names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/\\"), min_size=1, max_size=6
).filter(lambda name: name not in (".", ".."))
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_sizes = st.one_of(
    st.sampled_from([0, 1, PART_BYTES, 2 * PART_BYTES, 2 * PART_BYTES + 1, 3 * PART_BYTES, 3 * PART_BYTES + 1]),
    st.integers(0, 6 * PART_BYTES),
)
_contents = st.builds(lambda size, seed: random.Random(seed).randbytes(size), _sizes, st.integers(0, 1 << 20))


def _fits(tree: Tree) -> bool:
    """No file is also a folder."""
    return not any(other.startswith(path + "/") for path in tree for other in tree)


trees = st.dictionaries(_paths, _contents, min_size=1, max_size=8).filter(_fits)


def write_tree(folder: Path, tree: Tree) -> None:
    """Make a folder hold these files and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, data in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def read_tree(folder: Path) -> Tree:
    """Its files, without those that transfers keep there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (STATE_NAME, LOCK_NAME)
    }


def small_push(folder: Path, url: str, *, part_bytes: int = PART_BYTES, **options: Any) -> Transferred:
    """Push in small parts."""
    return push(folder, url, _part_bytes=part_bytes, **{**_QUICK, **options})


def small_pull(url: str, folder: Path, *, part_bytes: int = PART_BYTES, **options: Any) -> Transferred:
    """Pull in small parts."""
    return pull(url, folder, _part_bytes=part_bytes, **{**_QUICK, **options})


def counts(done: Transferred) -> tuple[int, int, int, int]:
    """Files copied, unchanged, removed, foreign."""
    return done.num_files, done.num_unchanged, done.num_removed, done.num_foreign
