"""Pipes of URLs: ``list_remote``, ``list_row_groups``, ``select``, ``shuffle_shards``."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

from ..core import arguments as check
from ..core.arguments import explained_as, seed_of
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import RetryPolicy, StorageOptions, policy_of
from ..core.partition import permutation
from ..core.urls import RemoteUrl, VirtualUrl, redact, split_sample_range
from ..errors import MissingKeyError, UrlError
from ..fetch.listing.shard_set import options_beside
from ..fetch.listing.source_argument import url_of
from ..fetch.listing.sources import OfKind, list_source
from ..fetch.listing.url_table import StringColumn
from ..fetch.selections.key_indexes import key_indexes
from ..fetch.selections.selection import (
    IndexedSample,
    key_column,
    keys_of_file,
    planned_views,
)
from ..fetch.tables import list_groups
from ..formats.error_policy import OnBadMember, raise_error
from ..formats.split_name import Split, shared_keys
from ..formats.tables import RowFilter, require_pyarrow
from .chain import all_pipes, name_of, splits_of
from .datapipe import DataPipe, SourcePipe
from .env import Env
from .members import alternatives, listed
from .passes import ListedPass, Pass
from .slots import require_end

T = TypeVar("T")

_EXAMPLE = "lambda sample: sample.members['jpg'] < 1 << 20"


@functional_datapipe("list_remote")
class ListRemote(SourcePipe[RemoteUrl]):
    """List the objects of source URLs (functional name: ``list_remote``).

    A source is

    - a folder: ``s3://b``, ``s3://b/dir/``, or without the slash if its name has no extension: ``s3://b/dir``,
      ``s3://b/v1.0``. ``dir`` never matches ``dir2``;
    - a glob: ``s3://b/t-*.tar``, where ``*`` and ``?`` stay within a folder and ``**`` does not;
    - a brace range: ``s3://b/t-{000000..000099}.tar`` or ``s3://b/{train,val}/``. A result without
      a glob and without a slash at its end is one object, for which the store is not listed;
    - a manifest: ``s3://b/t/index.json``, as written by ``write_shards``: its shards in its order, with the checksums
      that their bytes are verified against while they are read;
    - one object, whose name has an extension: ``s3://b/0.tar``. Without one (``s3://b/README``) it is found where there
      is no folder of that name. A URL of a web server is an object.

    ``*``, ``?``, ``[``, ``{`` and ``}`` that are part of a name have to be put into brackets, as by :func:`escape_url`:
    ``s3://b/what[?]/``. A :class:`RemoteUrl` is never a pattern.

    The objects of a source are sorted by path (by code points), and the sources keep their order, so the listing is
    the same in all processes. Objects are yielded while later pages of the listing are requested. A source that names
    one object costs no request: its size and etag are those of the first response to a reader, which also notices if it
    is missing. Directory markers are dropped, and so are files that macOS adds to folders
    (``._1.jpg``, ``.DS_Store``, ``__MACOSX/``), unless a source names one: ``skipped.members["macos"]`` counts them.
    Sources that overlap or are repeated yield their objects repeatedly. (A manifest that has a shard twice is refused.)

    Args:
        source_datapipe: source URLs (str, or ``os.PathLike``). A bare local path becomes a ``file://`` URL.
        pattern: glob that objects must match: by base name, or by the path below the source if it has a slash.
        recursive: whether folders below a prefix are listed too. Does not apply to a glob or a brace range.
        retry: policy for transient errors, for each page of a listing.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        RemoteUrl: a str with ``size`` (bytes) and ``etag`` if the listing has them.

    Raises:
        EmptyListingError: if a source has no objects, or none that match; names URL and pattern.
        UrlError: for a scheme without a transport, or a URL without a bucket. When the pipe is built, for a ``str``
            in place of a list: ``IterableWrapper("/data/x/")``.
        ObjectNotFoundError: if there is no such bucket.
        ManifestError: for a manifest that is damaged, or names a shard outside its folder or twice.
        AccessDeniedError: if these credentials may not list.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/zoo/ape/1.jpg": b"12", "/zoo2/2.jpg": b"3"})
        >>> [(url, url.size) for url in ListRemote(IterableWrapper(["memory://zoo"]), pattern="*.jpg")]
        [('memory://zoo/ape/1.jpg', 2)]
    """

    gives_urls = lists_data = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | os.PathLike[str]],
        *,
        pattern: str | None = None,
        recursive: bool = True,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source_datapipe)
        self.pattern = check.text_or_none("pattern", pattern, example="*.tar")
        self.recursive = check.flag("recursive", recursive)
        self._storage_options = StorageOptions(storage_options)
        self._retry = policy_of(retry)
        self._kind: Callable[[str], OfKind] | None = None
        self._split: Split | None = None

    def take_kind(self, kind: Callable[[str], OfKind]) -> ListRemote:
        """Of recipes: without a pattern, only objects of a kind in folders. Returns this pipe."""
        self._kind = kind if self.pattern is None else None
        return self

    def warn_of_shared_keys(self, split: Split) -> None:
        """Of recipes: warn of files that have the same key."""
        self._split = split

    def open(self, env: Env) -> Pass[RemoteUrl]:
        source, skipped = env.open(self.source_datapipe), env.shared.skipped(self)

        def listed() -> Iterator[RemoteUrl]:
            on_page = shared_keys(self._split)
            for one in source:
                url = url_of(one, of="list_remote")
                yield from list_source(
                    url,
                    pattern=self.pattern if self._kind is None else self._kind(url),
                    recursive=self.recursive,
                    on_skip=skipped.count_member,
                    on_page=on_page,
                    options=self._storage_options,
                    retry=self._retry,
                )

        return ListedPass(listed, source)


@functional_datapipe("list_row_groups")
class ListRowGroups(SourcePipe[RemoteUrl]):
    """List the row groups of Parquet and Arrow files (functional name: ``list_row_groups``).

    Row groups are then the unit that ``shuffle_shards`` shuffles, ``sharding_filter_rank`` splits and ``table_reader``
    reads, in place of whole files; and their numbers of rows are known, so that they can be split further and
    ``equalize_ranks`` can count. The record batches of an Arrow file count as its row groups.

    Only footers are read, of 16 files at once: one request for a Parquet file, two if the footer is longer than
    64 KiB. Arrow footers have no numbers of rows, and Arrow streams have no footers, so both take a request for each
    record batch of more than 256 KiB, one after the other. The footers of 512 files stay in memory for
    ``table_reader``, those of more than 256 KiB do not. Needs pyarrow: ``pip install 'torchdata_remote[tables]'``.

    Args:
        source_datapipe: URLs of files, as ``list_remote`` yields them.
        filter: row groups without a row that this condition accepts, by the statistics in the Parquet footer, are left
            out: a ``pyarrow.compute.Expression``, or a list of tuples as ``[("label", "in", [3, 4])]``. Pass
            ``table_reader`` the same one, which applies it to rows.
        retry: policy for transient errors.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        RemoteUrl: ``part of s3://b/x.parquet (samples 0 to 1000)`` for rows 0 to 999, with ``num_samples``, and
        ``size`` and ``etag`` of the file. A file with a single row group has its own URL.

    Raises:
        ImportError: if pyarrow is not installed.
        ShardReadError: for a file that is damaged, or no table.
        SampleError: if the filter cannot be applied to the columns.

    Example:
        >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
        >>> with fsspec.open("memory://doc/x.parquet", "wb") as file:
        ...     pq.write_table(pa.table({"n": range(5)}), file, row_group_size=3)
        >>> [(url, url.num_samples) for url in ListRowGroups(IterableWrapper(["memory://doc/x.parquet"]))]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('part of memory://doc/x.parquet (samples 0 to 3)', 3),
         ('part of memory://doc/x.parquet (samples 3 to 5)', 2)]
    """

    gives_urls = lists_data = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | os.PathLike[str]],
        *,
        filter: Any = None,  # noqa: A002  # as pyarrow calls it
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source_datapipe)
        require_pyarrow("list_row_groups")
        self._filter = None if filter is None else RowFilter(filter)
        self._storage_options = StorageOptions(storage_options)
        self._retry = policy_of(retry)

    def open(self, env: Env) -> Pass[RemoteUrl]:
        source = env.open(self.source_datapipe)
        urls = (url_of(url, of="list_row_groups") for url in source)
        return ListedPass(lambda: list_groups(urls, self._filter, self._storage_options, self._retry), source)


@functional_datapipe("shuffle_shards")
class ShuffleShards(SourcePipe[str]):
    """Permute URLs by seed and epoch (functional name: ``shuffle_shards``).

    The order is determined by ``(seed, epoch)`` and the listing; the global random state is neither read nor changed.
    Each pass is a new epoch, counted from 0, in all ranks and workers alike: under ``DataLoader`` with or without
    persistent workers, and under ``DataLoader2``. Passes of a loader and passes of direct iteration are counted
    separately, so peeking at the first sample on one rank does not desynchronise the ranks. Holds all URLs in memory.

    Args:
        source_datapipe: URLs, in the same order in every process.
        seed: any int.

    Yields:
        str: the same URLs, in a uniformly random order.

    Example:
        >>> pipe = ShuffleShards(IterableWrapper(["a", "b", "c", "d"]), seed=0)
        >>> first, second = list(pipe), list(pipe)
        >>> pipe.set_epoch(0)
        >>> first == list(pipe), first == second, sorted(second)
        (True, False, ['a', 'b', 'c', 'd'])
    """

    gives_urls = uses_epoch = True
    order_names = ("seed",)

    def __init__(self, source_datapipe: IterDataPipe[str], seed: int = 0) -> None:
        super().__init__(source_datapipe)
        self.seed = seed_of(seed)
        require_end(source_datapipe)

    def open(self, env: Env) -> Pass[str]:
        def shuffled() -> Iterator[str]:
            urls = env.whole(self.source_datapipe)
            yield from map(urls.__getitem__, permutation(len(urls), self.seed, *env.seeds))

        return ListedPass(shuffled)


_plans: weakref.WeakKeyDictionary[Any, tuple[Any, list[RemoteUrl]]] = weakref.WeakKeyDictionary()
"""The latest plan of each pipe in this process, and the listing for which it was made."""


class PlannedShards(DataPipe[RemoteUrl]):
    """Base of the pipes that plan views of all shards. Later passes that list the same use one plan."""

    gives_urls = True

    def sets(self) -> Mapping[str, IterDataPipe[str]]:
        """The listings, by the names of the sets."""
        raise NotImplementedError

    def plan(self, sets: Mapping[str, list[RemoteUrl]]) -> list[RemoteUrl]:
        """Make the views of the shards of all sets."""
        raise NotImplementedError

    def open(self, env: Env) -> Pass[RemoteUrl]:
        sources = {name: env.open(source) for name, source in self.sets().items()}

        def planned() -> Iterator[RemoteUrl]:
            sets = {name: list(map(self._whole, source)) for name, source in sources.items()}
            listed = [[url.__getnewargs__() for url in urls] for urls in sets.values()]
            if (found := _plans.get(self)) is None or found[0] != listed:
                found = _plans[self] = listed, self.plan(sets)
            yield from found[1]

        return ListedPass(planned, *sources.values())

    def _whole(self, item: Any) -> RemoteUrl:
        """Return the URL of a whole shard.

        Raises:
            UrlError: for a range of samples, or selected samples.
        """
        of = name_of(self).removesuffix("Shards").lower()
        url = url_of(item, of=of)
        split_sample_range(url)
        if isinstance(url, VirtualUrl):
            raise UrlError(
                f"{of}: {redact(url)} is a part of a shard: pass keys=, where= and members= to one select(), and put "
                "it behind the URLs, in place of join() and before sharding_filter_rank().",
                url=redact(url),
            )
        return url if isinstance(url, RemoteUrl) else RemoteUrl(url)


@functional_datapipe("select")
class Select(SourcePipe[RemoteUrl], PlannedShards):
    """Select samples and members of tar shards (functional name: ``select``).

    Readers then request the bytes of what was selected only, and nothing is written. It is planned by the files of keys
    beside the shards (``shard.tar.keys``, of ``ShardWriter`` and ``torchdata-remote manifest``), 16 requests at a time;
    without them the headers of the shards are read, with a warning. A plan of unchanged shards is made once in a
    process. Put it between ``list_remote`` and ``shuffle_shards``.

    Args:
        source_datapipe: URLs of uncompressed tar shards.
        keys: of the samples, as ``"__key__"`` has them. A list, a set, a column of a table or another iterable; or the
            URL or path of a file: a ``.txt`` with a key in each line, or a ``.parquet``, ``.arrow`` or ``.feather``,
            which need pyarrow (``pip install 'torchdata_remote[tables]'``). A key that several shards have selects all
            its samples. ``None`` selects all keys.
        where: a function that is called with the :class:`IndexedSample` of each sample (that ``keys`` selects), and
            returns whether it is selected, as for Python's ``filter``; one that workers receive must be importable.
            With the URL of a table, an expression of ``pyarrow.compute`` that its rows must fulfil.
        members: of each selected sample that are read: extensions, in any case; of ``"jpg;jpeg;png"`` the first
            that the sample has. ``None`` reads all.
        key_column: of a file that is a table, the column with the keys.
        on_missing_key: policy for keys that no shard has: ``raise_error``, ``skip_with_warning``, or a function that is
            called with the error.
        on_bad_member: policy for members that cannot be part of a sample, where headers of shards are read. Pass the
            reader's, as ``stream_shards`` does.
        retry: policy for transient errors, for each request.
        storage_options: for the store, in fsspec's vocabulary; also for the file of ``keys`` in the same kind of store.

    Yields:
        RemoteUrl: of each shard that has a selected sample, in the order of the source, with its number of selected
        samples. It is the URL of the shard itself if all of it is selected and its manifest has checksums.

    Raises:
        MissingKeyError: if no shard has some of the keys: their number, and some of them.
        MissingMemberError: if a selected sample has none of the alternatives in ``members``.
        EmptyListingError: if nothing is selected.
        ManifestError: if the file of keys belongs to another version of the shard.
        ShardReadError: for a shard without such a file that is compressed, a zip, or damaged.
        UrlError: for samples that were selected elsewhere.
        ValueError: after ``sharding_filter_rank`` or another ``select``.
        RemoteDataError: if the file of ``keys`` is damaged or of an unknown kind, or has no such column.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://chosen/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "txt": "x" * i, "cls": i}) for i in range(7)]
        >>> urls = IterableWrapper(["memory://chosen/index.json"]).list_remote()
        >>> chosen = Select(urls, keys={"2", "5", "6"}, where=lambda sample: sample.members["txt"] < 6, members=["txt"])
        >>> [url.num_samples for url in chosen], list(chosen.shard_tar_reader().to_tuple("__key__", "txt"))
        ([2], [('2', b'xx'), ('5', b'xxxxx')])
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        keys: Any = None,
        where: Callable[[IndexedSample], object] | Any = None,
        members: str | Sequence[str] | None = None,
        key_column: str = "__key__",
        on_missing_key: Callable[[MissingKeyError], object] = raise_error,
        on_bad_member: OnBadMember = raise_error,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source_datapipe)
        if splits_of(source_datapipe) or any(isinstance(found, Select) for found in all_pipes(source_datapipe)):
            raise ValueError(
                "select plans all shards, once: put it before sharding_filter_rank(), and pass keys=, where= and "
                "members= to one of them."
            )
        require_end(self.source_datapipe)
        if keys is None and where is None and members is None:
            raise ValueError("select needs keys=, where= or members=: without them it selects everything.")
        self._column = check.text("key_column", key_column, example="__key__")
        self._keys, self._filter = _keys_or_file(keys), None
        if isinstance(self._keys, str) and not callable(where):
            self._filter, where = None if where is None else RowFilter(where), None
        self._where = check.function_or_none("where", where, example=_EXAMPLE)
        self._members = _alternatives(members)
        self._on_missing_key = check.function("on_missing_key", on_missing_key, example="skip_with_warning")
        self._on_bad_member = check.function("on_bad_member", on_bad_member, example="skip_with_warning")
        self._retry, self._storage_options = policy_of(retry), StorageOptions(storage_options)

    def sets(self) -> Mapping[str, IterDataPipe[str]]:
        return {"": self.source_datapipe}

    @explained_as("select")
    def plan(self, sets: Mapping[str, list[RemoteUrl]]) -> list[RemoteUrl]:
        (shards,), keys = sets.values(), self._keys
        if isinstance(keys, str):
            options = options_beside(keys, shards[0], self._storage_options) if shards else self._storage_options
            keys = keys_of_file(keys, self._column, self._filter, options, self._retry)
        policy = self._on_bad_member
        with closing(key_indexes(shards, self._storage_options, self._retry, on_bad_member=policy)) as indexes:
            return planned_views(indexes, keys, self._where, self._members, self._on_missing_key)


def _keys_or_file(keys: Any) -> StringColumn | str | None:
    """Return the keys, or the URL of their file."""
    if isinstance(keys, str | os.PathLike):
        return check.path_or_url("keys", keys, example="s3://b/train.parquet")
    if keys is None:
        return None
    if hasattr(type(keys), "columns"):  # an iterable of its columns, or of their names
        raise check.marked(TypeError(f"keys must be a list, such as a column of the table, got {check.a_kind(keys)}."))
    return key_column(keys.to_pylist() if hasattr(keys, "to_pylist") else listed("keys", keys, example="['a', 'b']"))


def _alternatives(members: Any) -> tuple[tuple[str, ...], ...] | None:
    if members is None:
        return None
    names = [members] if isinstance(members, str) else listed("members", members, example="['jpg;png', 'cls']")
    found = tuple(alternatives(check.text("members", name, example="jpg;png").lower()) for name in names)
    if not all(found) or not found:
        raise check.marked(ValueError(f"members must be extensions such as ('jpg;png', 'cls'), got {names}."))
    return found
