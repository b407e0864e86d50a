"""pyarrow, which is optional: the error where it is missing, and its errors as those of this package."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...errors import RemoteDataError, ShardReadError

if TYPE_CHECKING:
    import pyarrow as pa

ADVICE = (
    "The upload was cut short, or the file is damaged: write it again, or pass on_bad_shard=skip_with_warning to read "
    "on."
)


def require_pyarrow(reader: str) -> None:
    """Check that pyarrow is installed, without importing it.

    Args:
        reader: that needs it.

    Raises:
        ImportError: if it is not.
    """
    if find_spec("pyarrow") is None:
        raise ImportError(f"{reader} needs pyarrow: pip install 'torchdata_remote[tables]'")


@contextlib.contextmanager
def reading(url: str, what: str) -> Iterator[None]:
    """Turn the errors of pyarrow, and those of damaged numbers, into a ``ShardReadError``.

    Args:
        url: of the file, as errors may show it.
        what: is read: ``"the footer"``.

    Raises:
        ShardReadError: names the file and what was read.
    """
    import pyarrow as pa

    try:
        yield
    except RemoteDataError:
        raise
    except pa.ArrowException as error:
        raise damaged(url, what, f"{type(error).__name__}: {error}") from error
    # What pyarrow raises of Python's own, and what numbers lead to that are wrong
    except (OSError, ValueError, TypeError, KeyError, IndexError, NotImplementedError, RuntimeError) as error:
        raise damaged(url, what, f"{type(error).__name__}: {error}") from error
    except (MemoryError, OverflowError, struct.error) as error:
        raise damaged(url, what, f"{type(error).__name__}: {error}") from error


def require_text(fields: Iterable[pa.Field]) -> None:
    """Check that the names of columns, and of the fields in them, are UTF-8, which pyarrow does when they are used.

    Raises:
        UnicodeDecodeError: if one is not.
    """
    for field in fields:
        _ = field.name
        kind = field.type
        require_text(kind.field(index) for index in range(kind.num_fields))


def damaged(url: str, what: str, why: str) -> ShardReadError:
    """Error of a file that cannot be read."""
    return ShardReadError(f"{url}: {what} cannot be read: {why.rstrip('.'):.500}. {ADVICE}", url=url)
