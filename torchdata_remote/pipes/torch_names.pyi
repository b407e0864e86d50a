"""The functional names of torch, with the types of items. Base of the class in ``typed.pyi``."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal, TypeVar, overload

from torch.utils.data.datapipes.datapipe import IterDataPipe as TorchDataPipe

from .typed import IterDataPipe

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")

class TorchNames(TorchDataPipe[T_co]):
    __getattr__: None  # type: ignore[misc,assignment]  # torch's would make each misspelt name an Any

    def __iter__(self) -> Iterator[T_co]: ...
    @overload  # type: ignore[override]
    def map(self, fn: Callable[[T_co], U]) -> IterDataPipe[U]:
        """Call a function on each item (functional name: ``map``).

        Args:
            fn: called with the item, or with its fields ``input_col``.
            input_col: index or key in each item, or several.
            output_col: field that is set to the result; -1 appends it; ``None`` replaces the (first) input.
        """

    @overload
    def map(self, fn: Callable[..., Any], input_col: Any, output_col: Any = None) -> IterDataPipe[Any]:
        """Call a function on fields of each item (functional name: ``map``).

        Args:
            fn: called with the fields ``input_col``.
            input_col: index or key in each item, or several.
            output_col: field that is set to the result; -1 appends it; ``None`` replaces the (first) input.
        """

    @overload  # type: ignore[override]
    def filter(self, filter_fn: Callable[[T_co], bool]) -> IterDataPipe[T_co]:
        """Yield the items for which a function returns ``True`` (functional name: ``filter``).

        Args:
            filter_fn: called with the item, or with its fields ``input_col``; returns a bool.
            input_col: index or key in each item, or several.
        """

    @overload
    def filter(self, filter_fn: Callable[..., bool], input_col: Any) -> IterDataPipe[T_co]:
        """Yield the items for which a function of their fields returns ``True`` (functional name: ``filter``).

        Args:
            filter_fn: called with the fields ``input_col``; returns a bool.
            input_col: index or key in each item, or several.
        """

    @overload  # type: ignore[override]
    def batch(self, batch_size: int, drop_last: bool = False) -> IterDataPipe[list[T_co]]:
        """Group items into lists (functional name: ``batch``).

        Args:
            batch_size: items in a list.
            drop_last: whether the last list is dropped if it is not full.
            wrapper_class: called with each list.
        """

    @overload
    def batch(
        self, batch_size: int, drop_last: bool = False, *, wrapper_class: Callable[[list[T_co]], U]
    ) -> IterDataPipe[U]:
        """Group items into lists, and call a function on each (functional name: ``batch``).

        Args:
            batch_size: items in a list.
            drop_last: whether the last list is dropped if it is not full.
            wrapper_class: called with each list.
        """

    @overload  # type: ignore[override]
    def unbatch(self: TorchNames[list[U]]) -> IterDataPipe[U]:
        """Yield the items of lists (functional name: ``unbatch``).

        Args:
            unbatch_level: number of nested lists that are taken apart; -1 for all of them.
        """

    @overload
    def unbatch(self, unbatch_level: int) -> IterDataPipe[Any]:
        """Yield the items of nested lists (functional name: ``unbatch``).

        Args:
            unbatch_level: number of nested lists that are taken apart; -1 for all of them.
        """

    @overload  # type: ignore[override]
    def collate(self) -> IterDataPipe[Any]:
        """Convert batches to tensors by ``torch.utils.data.default_collate`` (functional name: ``collate``).

        Args:
            conversion: converts a batch to one item.
            collate_fn: the same; takes precedence over ``conversion``.
        """

    @overload
    def collate(self, conversion: Callable[[T_co], U]) -> IterDataPipe[U]:
        """Convert batches by a function (functional name: ``collate``).

        Args:
            conversion: converts a batch to one item.
            collate_fn: the same; takes precedence over ``conversion``.
        """

    @overload
    def collate(self, *, collate_fn: Callable[[T_co], U]) -> IterDataPipe[U]:
        """Convert batches by a function (functional name: ``collate``).

        Args:
            conversion: converts a batch to one item.
            collate_fn: the same; takes precedence over ``conversion``.
        """

    def shuffle(self, *, buffer_size: int = 10000, unbatch_level: int = 0) -> Shuffler[T_co]:
        """Shuffle items within a buffer, by torch's random state (functional name: ``shuffle``).

        Its position cannot be saved: ``shuffle_samples`` and ``shuffle_shards`` can be resumed.

        Args:
            buffer_size: number of items in memory.
            unbatch_level: number of nested lists that are taken apart first.
        """

    def sharding_filter(self, sharding_group_filter: Any = None) -> IterDataPipe[T_co]:
        """Pass on each n-th item in each worker (functional name: ``sharding_filter``).

        ``sharding_filter_rank`` splits URLs, so that no worker reads what others yield, and knows ranks without a loader.

        Args:
            sharding_group_filter: the kind of group that it splits over; ``None`` for all.
        """

    def concat(self, *datapipes: TorchDataPipe[U]) -> IterDataPipe[T_co | U]:
        """Yield the items of several pipes, one pipe after the other (functional name: ``concat``).

        Args:
            *datapipes: whose items follow.
        """

    @overload
    def zip(self, datapipe: TorchDataPipe[U], /) -> IterDataPipe[tuple[T_co, U]]:
        """Yield tuples of the items of several pipes, until the shortest ends (functional name: ``zip``).

        Args:
            *datapipes: the others.
        """

    @overload
    def zip(self, datapipe: TorchDataPipe[U], another: TorchDataPipe[V], /) -> IterDataPipe[tuple[T_co, U, V]]:
        """Yield tuples of the items of several pipes, until the shortest ends (functional name: ``zip``).

        Args:
            *datapipes: the others.
        """

    @overload
    def zip(
        self, datapipe: TorchDataPipe[U], another: TorchDataPipe[V], third: TorchDataPipe[W], /
    ) -> IterDataPipe[tuple[T_co, U, V, W]]:
        """Yield tuples of the items of several pipes, until the shortest ends (functional name: ``zip``).

        Args:
            *datapipes: the others.
        """

    @overload
    def zip(self, *datapipes: TorchDataPipe[Any]) -> IterDataPipe[tuple[Any, ...]]:
        """Yield tuples of the items of several pipes, until the shortest ends (functional name: ``zip``).

        Args:
            *datapipes: the others.
        """

    def mux(self, *datapipes: TorchDataPipe[U]) -> IterDataPipe[T_co | U]:
        """Yield one item of each of several pipes in turn, until the shortest ends (functional name: ``mux``).

        Args:
            *datapipes: the others.
        """

    def fork(  # type: ignore[override]
        self, num_instances: int, buffer_size: int = 1000, copy: Literal["shallow", "deep"] | None = None
    ) -> list[IterDataPipe[T_co]]:
        """Make several pipes with the same items (functional name: ``fork``).

        Args:
            num_instances: number of pipes.
            buffer_size: maximum number of items between the first and the last of them; -1 for no limit.
            copy: how items are copied for each pipe; ``None`` shares them.
        """

    def demux(  # type: ignore[override]
        self,
        num_instances: int,
        classifier_fn: Callable[[T_co], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterDataPipe[T_co]]:
        """Split the items among several pipes by a function (functional name: ``demux``).

        Args:
            num_instances: number of pipes.
            classifier_fn: called with the item; returns the number of its pipe, or ``None``.
            drop_none: whether items with ``None`` are dropped; otherwise they are an error.
            buffer_size: maximum number of items that wait for their pipe to be read; -1 for no limit.
        """

    @overload  # type: ignore[override]
    def groupby(
        self,
        group_key_fn: Callable[[T_co], Hashable],
        *,
        keep_key: Literal[False] = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> IterDataPipe[list[T_co]]:
        """Group items with the same key into lists (functional name: ``groupby``).

        Args:
            group_key_fn: called with the item; returns its key.
            keep_key: whether ``(key, list)`` is yielded instead of the list.
            buffer_size: maximum number of items in memory.
            group_size: maximum number of items in a list.
            guaranteed_group_size: minimum number of items in a list that is yielded because the buffer is full.
            drop_remaining: whether smaller lists are dropped then.
        """

    @overload
    def groupby(
        self,
        group_key_fn: Callable[[T_co], U],
        *,
        keep_key: Literal[True],
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> IterDataPipe[tuple[U, list[T_co]]]:
        """Group items with the same key into lists (functional name: ``groupby``).

        Args:
            group_key_fn: called with the item; returns its key.
            keep_key: whether ``(key, list)`` is yielded instead of the list.
            buffer_size: maximum number of items in memory.
            group_size: maximum number of items in a list.
            guaranteed_group_size: minimum number of items in a list that is yielded because the buffer is full.
            drop_remaining: whether smaller lists are dropped then.
        """

    def list_files(
        self: TorchNames[str],
        masks: str | list[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> IterDataPipe[str]:
        """List the files of local folders (functional name: ``list_files``). ``list_remote`` does so in any store.

        Args:
            masks: globs over the names of the files.
            recursive: whether folders below are listed too.
            abspath: whether paths are absolute.
            non_deterministic: whether paths are yielded in the order of the file system.
            length: of this pipe, as ``len`` returns it; -1 if it has none.
        """

    def open_files(
        self: TorchNames[str], mode: str = "r", encoding: str | None = None, length: int = -1
    ) -> IterDataPipe[tuple[str, Any]]:
        """Open local files (functional name: ``open_files``). ``async_prefetch`` opens URLs of any store.

        Args:
            mode: as in ``open``.
            encoding: as in ``open``.
            length: of this pipe, as ``len`` returns it; -1 if it has none.
        """

    def read_from_stream(self: TorchNames[tuple[str, Any]], chunk: int | None = None) -> IterDataPipe[tuple[str, Any]]:
        """Read streams as ``(path, data)`` (functional name: ``read_from_stream``).

        Args:
            chunk: number of bytes in each item; ``None`` for the complete stream.
        """

    def routed_decode(
        self: TorchNames[tuple[str, Any]], *handlers: Callable[..., Any], key_fn: Callable[..., Any] = ...
    ) -> IterDataPipe[tuple[str, Any]]:
        """Decode ``(path, data)`` by the extension of the path (functional name: ``routed_decode``).

        Args:
            *handlers: called with extension and data; return ``None`` for what they do not decode.
            key_fn: called with the path; returns its extension.
        """

class Shuffler(IterDataPipe[T_co]):
    """torch's shuffle."""

    def set_shuffle(self, shuffle: bool = True) -> Shuffler[T_co]:
        """Turn the shuffle on or off."""

    def set_seed(self, seed: int) -> Shuffler[T_co]:
        """Set the seed of the next pass."""
