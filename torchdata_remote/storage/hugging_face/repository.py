"""Which repository, revision and file a path of ``hf://`` names, as ``HfFileSystem`` reads it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...errors import UrlError

_KINDS = {"datasets": "dataset", "models": "model", "spaces": "space", "kernels": "kernel"}
_BUCKETS = "buckets"
_WITH_SLASHES = re.compile(r"refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)")  # revisions that may be written without %2F


def is_plain(path: str) -> bool:
    """Whether no segment of a path is empty or dots, which urllib3 would resolve: it would name another path."""
    return not any(segment in ("", ".", "..") for segment in path.split("/"))


class Repository(NamedTuple):
    """A repository at a revision.

    Args:
        kind: ``datasets``, ``models``, ``spaces`` or ``kernels``.
        name: ``OWNER/NAME``, or ``NAME`` alone for the few repositories without an owner.
        revision: a branch, tag, commit or other reference; ``None`` if the path names none.
    """

    kind: str
    name: str
    revision: str | None

    def api(self, *parts: str) -> str:
        """Path of a request about it, with each part quoted whole, as ``huggingface_hub`` does."""
        return "/".join([f"/api/{self.kind}/{quote(self.name)}", *(quote(part, safe="") for part in parts)])

    @property
    def page(self) -> str:
        """Path of its page, below which its files are."""
        return f"/{quote(self.name)}" if self.kind == "models" else f"/{self.kind}/{quote(self.name)}"

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]} {self.name!r}"


class HubPath(NamedTuple):
    """A place in a repository.

    Args:
        repository: with its revision.
        root: the start of the path, up to that of the file: ``OWNER/NAME@REVISION/``.
        file: path in the repository; empty for its root.
    """

    repository: Repository
    root: str
    file: str

    def without_owner(self) -> HubPath | None:
        """Return the place in the repository without owner that the path may mean too; ``None`` if there is none."""
        kind, name, revision = self.repository
        owner, slash, folder = name.partition("/")
        if revision is not None or not slash or kind not in ("datasets", "models"):
            return None
        file = f"{folder}/{self.file}" if self.file or self.root.endswith("/") else folder
        return HubPath(Repository(kind, owner, None), self.root[: self.root.index(folder)], file)


def split_hub_path(first: str, path: str) -> HubPath:
    """Split the path of an ``hf://`` URL.

    Args:
        first: the first segment of the URL: a kind, or the owner of a model.
        path: what follows it.

    Raises:
        UrlError: if it names no repository, or a bucket.

    Example:
        >>> split_hub_path("datasets", "me/photos@refs/convert/parquet/train/0.parquet")
        HubPath(repository=Repository(kind='datasets', name='me/photos', revision='refs/convert/parquet'), \
root='me/photos@refs/convert/parquet/', file='train/0.parquet')
        >>> split_hub_path("me", "model@v1%2Fb/a@1.bin").repository.revision
        'v1/b'
    """
    url = f"hf://{first}/{path}"
    if first == _BUCKETS:
        raise UrlError(
            f"{url}: buckets of the Hub are not read, because their files have no versions. Read a dataset, or pass "
            "backend='fsspec', which reads them by huggingface_hub.",
            url=url,
        )
    kind, whole = (first, path) if first in _KINDS else ("models", f"{first}/{path}")
    name, at, after = whole.partition("@")
    revision: str | None = None
    if at and name.count("/") <= 1:
        reference = _WITH_SLASHES.match(after)
        written = reference.group() if reference else after.partition("/")[0]
        root, revision = f"{name}@{written}", unquote(written)
    else:
        root = name = "/".join(whole.split("/", 2)[:2])
    if (
        not is_plain(name)
        or (revision is None and "/" not in name)
        or (revision is not None and not is_plain(revision))
    ):
        raise UrlError(
            f"{url}: names no repository. Expected hf://datasets/OWNER/NAME/PATH, or with a revision "
            "hf://datasets/OWNER/NAME@REVISION/PATH, without a segment '.' or '..' in them.",
            url=url,
        )
    file = whole[len(root) :]
    if file.startswith("/"):
        root, file = f"{root}/", file[1:]
    return HubPath(Repository(kind, name, revision), root if kind == first else root[len(first) + 1 :], file)
