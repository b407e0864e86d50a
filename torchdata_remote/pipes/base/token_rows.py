"""Rows of tokens: documents in a sequence of fixed length, with their boundaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...core.arguments import check
from ...errors import SampleError, StateError
from ...formats.sample import describe_item
from .members import member_missing, member_of, url_of_item

Tokens = np.ndarray[Any, np.dtype[np.int64]]
Row = dict[str, torch.Tensor]

_LARGEST = (1 << 63) - 1
_PADDING_ID = -1  # among document_ids


def token_id(name: str, value: int | None) -> int | None:
    """Check that an int can be a token.

    Raises:
        ValueError: if it is no int64.
    """
    if value is not None and not -_LARGEST - 1 <= value <= _LARGEST:
        raise check.marked(ValueError(f"{name} must be a token, an int64, got {value:_}."))
    return value


class TokenReader:
    """Takes the tokens out of an item.

    Args:
        member: of samples that has them; ``None`` for items that are tokens.
        separator: that follows each document; ``None`` for none.
    """

    def __init__(self, member: str | None, separator: int | None) -> None:
        self._member = member
        self._separator = None if separator is None else np.array([separator], np.int64)

    def tokens(self, item: Any) -> Tokens:
        """Return the tokens of an item with the separator: int64, shape ``(tokens,)``.

        Raises:
            SampleError: if they are no integers in one dimension.
            MissingMemberError: if the sample has no such member.
        """
        found: Any = self._value(item)
        if isinstance(found, torch.Tensor):
            try:
                found = found.detach().cpu().numpy()
            except (TypeError, RuntimeError):  # no numpy type, or sparse, nested, without data
                raise self._error(f"a {found.layout} tensor of {found.dtype}", item) from None
        if isinstance(found, np.ma.MaskedArray) and np.ma.is_masked(found):
            raise self._error("an array with masked tokens, which compressed() leaves out,", item)
        array = found if isinstance(found, np.ndarray) else self._array(found, item)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise self._error(f"{check.a_kind(found)} of {array.dtype} and shape {array.shape}", item)
        if array.dtype == np.uint64 and array.size and array.max() > _LARGEST:
            raise self._error(f"{array.max()}, which is no int64,", item)
        array = array.astype(np.int64, copy=False)
        return array if self._separator is None else np.concatenate([array, self._separator])

    def _value(self, item: Any) -> Any:
        if self._member is not None:
            return member_of(item, self._member, of=f"pack(member={self._member!r})")
        if isinstance(item, Mapping):
            raise member_missing(item, "pack: expected token ids", "member")
        return item

    def _array(self, value: Any, item: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, (list, tuple, range)) or hasattr(value, "__array__"):
            try:
                return np.asarray(value)
            except (ValueError, TypeError, OverflowError):  # lists of different lengths
                raise self._error(check.a_kind(value) + " of other things", item) from None
        raise self._error(check.a_kind(value), item)

    def _error(self, found: str, item: Any) -> SampleError:
        return SampleError(
            "pack: expected token ids, a tensor, array or list of integers in one dimension, got "
            f"{found} in {describe_item(item)}. Put the tokenizer before it: map() or parallel_map().",
            url=url_of_item(item),
        )


def require_cut(start: int, document: Tokens) -> None:
    """Check that a document has the tokens that were handed out before the state was saved.

    Raises:
        StateError: if it has fewer.
    """
    if start > len(document):
        raise StateError(
            f"pack: {start:,} tokens of a document were handed out before the state was saved, and it has "
            f"{len(document):,} now: the tokenizer, or what it reads, has changed."
        )


class RowMaker:
    """Makes rows of documents.

    Args:
        length: of rows, in tokens.
        padding: token with which rows are filled.
        cu_seqlens: whether rows have the boundaries of their documents as cumulative lengths, too.
    """

    def __init__(self, length: int, padding: int, *, cu_seqlens: bool) -> None:
        self._length, self._padding, self._has_cu_seqlens = length, padding, cu_seqlens
        self._positions = np.arange(length)

    def row(self, documents: Sequence[Tokens], *, fill: bool) -> Row:
        """Return a row of documents, or parts of them, filled up to the length if it is to be."""
        ends = np.cumsum([len(document) for document in documents])
        num_tokens = int(ends[-1])
        size = self._length if fill else num_tokens
        input_ids, position_ids, document_ids = (np.empty(size, np.int64) for _ in range(3))
        start = 0
        for number, document in enumerate(documents):
            end = start + len(document)
            input_ids[start:end] = document
            position_ids[start:end] = self._positions[: end - start]
            document_ids[start:end] = number
            start = end
        if num_tokens < size:
            input_ids[num_tokens:] = self._padding
            position_ids[num_tokens:] = self._positions[: size - num_tokens]
            document_ids[num_tokens:] = _PADDING_ID
            ends = np.append(ends, size)
        row = {"input_ids": input_ids, "position_ids": position_ids, "document_ids": document_ids}
        if self._has_cu_seqlens:
            row["cu_seqlens"] = np.concatenate([[0], ends]).astype(np.int32)
        return {name: torch.from_numpy(array) for name, array in row.items()}
