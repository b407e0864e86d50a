"""Every error that this package raises on purpose.

::

    RemoteDataError
    ├── UrlError (ValueError)                   a URL that cannot be used
    ├── EmptyListingError (FileNotFoundError)   a source URL under which nothing was found
    ├── EmptyShareError (ValueError)            fewer shards than readers
    ├── UnequalListingError (ValueError)        ranks that list different objects
    ├── UnsplitError (ValueError)               readers that would all hand out the same samples
    ├── SplitTwiceError (ValueError)            a trainer that would split samples a second time
    ├── StorageError (OSError)                  the store refused a request
    │   ├── ObjectNotFoundError (FileNotFoundError)
    │   ├── AccessDeniedError (PermissionError)
    │   │   └── ExpiredCredentialsError         expired, also after one renewal
    │   ├── ObjectExistsError (FileExistsError) the target exists, and overwrite=False
    │   ├── ObjectChangedError                  replaced while it was being read
    │   ├── ContentEncodingError (ValueError)   stored with a Content-Encoding
    │   └── TransientStorageError (ConnectionError)  still failing after all retries
    ├── ShardReadError (ValueError)             a shard that is incomplete or damaged
    │   ├── BadMemberError                      a member that cannot be part of a sample
    │   ├── MissingEndError                     a tar without its end-of-archive blocks
    │   └── ShardCorruptError                   bytes that differ from the manifest's checksums
    ├── ShardWriteError (ValueError)            samples that cannot be written
    ├── WorkerLostError (RuntimeError)          a worker process that was lost repeatedly
    ├── WorkerStartError (RuntimeError)         worker processes that could not start
    ├── ManifestError (ValueError)              an index.json that cannot be used
    ├── JoinError (ValueError)                  shard sets that do not fit together
    ├── JobError (ValueError)                   a training job that cannot be rendered
    ├── ServiceError (RuntimeError)             the dataset service cannot be started
    ├── StateError (ValueError)                 a chain without state, or a state of another chain
    └── SampleError (ValueError)                a sample that a pipe cannot process
        ├── DecodeError
        ├── EncodeError
        ├── CollateError (TypeError)
        ├── LabelError (LookupError)
        ├── MissingKeyError (KeyError)
        └── MissingMemberError (KeyError)

Each can be built from its message alone, as torch does with one that leaves a DataLoader worker: the one string holds
the worker's traceback. The rebuilt error has its own message again, and the traceback as its ``__cause__``.
"""

from __future__ import annotations

import re

NOTE_OF_PIPE = "\nThis exception is thrown by __iter__ of "  # appended by torch to one that leaves a pipe
# The message of an exception that torch has rebuilt: the traceback ends with the type and message of the last error
WORKER_REPORT = re.compile(
    r"Caught \w+ [^\n]*\.\nOriginal (?P<traceback>(?:.*\n)?Traceback \(most recent call last\):\n(?: [^\n]*\n|\n)+"
    rf"(?P<line>\S.*?))(?:{NOTE_OF_PIPE}.*)?\s*\Z",
    re.DOTALL,
)
_FRAME_OF_TORCH = re.compile(r'  File "[^"]*[/\\\\](?:torch|torchdata)[/\\\\][^\n]*\n(?:    [^\n]*\n)*')
_QUERY = re.compile(r"(https?://[^\s'\"<>()?#]*)[?#](?:[^\s'\"<>()]*[^\s'\"<>().,:;])?", re.IGNORECASE)


class RemoteDataError(Exception):
    """Base of all errors of this package. The queries of http URLs are cut off: they may be signatures.

    Args:
        message: where it happened, what was received, what was expected, and what to do.
        url: the object or prefix concerned, without credentials.
    """

    def __init__(self, message: str, *, url: str | None = None) -> None:
        if (report := WORKER_REPORT.match(str(message))) is not None:
            message = report["line"].partition(": ")[2]
            self.__cause__ = RuntimeError(f"in a worker:\n\n{_FRAME_OF_TORCH.sub('', report['traceback'])}")
        super().__init__(_QUERY.sub(r"\1", str(message)))
        self.url = None if url is None else _QUERY.sub(r"\1", url)

    def __str__(self) -> str:
        return str(self.args[0]).partition(NOTE_OF_PIPE)[0]  # KeyError would print a repr, and torch adds notes


class UrlError(RemoteDataError, ValueError):
    """A URL cannot be used: unknown scheme, no bucket, credentials inside, an invalid brace range."""


class EmptyListingError(RemoteDataError, FileNotFoundError):
    """A source URL has no objects, or none that match the pattern."""


class EmptyShareError(RemoteDataError, ValueError):
    """There are fewer shards than slots (ranks x workers), so one reader would have no data."""


class UnequalListingError(RemoteDataError, ValueError):
    """The ranks list different objects, so their shares would not add up to the dataset."""


class UnsplitError(RemoteDataError, ValueError):
    """Several ranks or workers would each read the whole dataset, because the chain is not split."""


class SplitTwiceError(RemoteDataError, ValueError):
    """A training framework would split the samples of a chain that is already split, and lose samples."""


class StorageError(RemoteDataError, OSError):
    """A store refused a request, or a file system call failed.

    Args:
        message: where it happened, what was received, what was expected, and what to do.
        url: the object or prefix concerned, without credentials.
        start_byte: first byte asked for, where a range was read.
        end_byte: byte after the last one asked for; ``None`` for the object's end.
        etag: the version asked for.
        attempts: requests sent for this.
        elapsed_s: seconds since the first of them.
    """

    def __init__(
        self,
        message: str,
        *,
        url: str | None = None,
        start_byte: int | None = None,
        end_byte: int | None = None,
        etag: str | None = None,
        attempts: int | None = None,
        elapsed_s: float | None = None,
    ) -> None:
        super().__init__(message, url=url)
        self.start_byte, self.end_byte, self.etag, self.attempts = start_byte, end_byte, etag, attempts
        self.elapsed_s = elapsed_s


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The object or bucket does not exist."""


class AccessDeniedError(StorageError, PermissionError):
    """The credentials are missing, or do not permit the request."""


class ExpiredCredentialsError(AccessDeniedError):
    """The store reports expired credentials or a wrong clock, also after the credentials were looked up again."""


class ObjectExistsError(StorageError, FileExistsError):
    """The target exists already and ``overwrite`` is off, or another writer uses it."""


class ObjectChangedError(StorageError):
    """The object was replaced while it was read: its etag or size differs from the listing or from its first part."""


class ContentEncodingError(StorageError, ValueError):
    """The object is stored with a Content-Encoding such as ``gzip``: its bytes are not what its name promises."""


class TransientStorageError(StorageError, ConnectionError):
    """A temporary fault (reset, time-out, 5xx response) lasted until the retries ended."""

    unreachable = ""  # host and port that refused the connection, or whose name is unknown
    likely_permanent = False  # a broken answer or an unknown host name: repeated a few times, not until the deadline
    overloaded = False  # whether the store asked for fewer requests (503, 429)
    retry_after_s: float | None = None  # the wait that it asked for


class ShardReadError(RemoteDataError, ValueError):
    """A shard is incomplete, damaged, or does not consist of samples."""


class BadMemberError(ShardReadError):
    """A member of an intact archive cannot be part of a sample: it has no extension, or the same one as another member.

    Args:
        message: where it happened, what was received, what was expected, and what to do.
        url: of the shard, without credentials.
        member: its name.
        reason: why, such as ``"it has no extension"``: the same for all members of that kind.
    """

    num_before: int | None = None  # bad members that were left out of the shard before; None: the shard is in question

    def __init__(
        self, message: str, *, url: str | None = None, member: str | None = None, reason: str | None = None
    ) -> None:
        super().__init__(message, url=url)
        self.member, self.reason = member, reason


class MissingEndError(ShardReadError):
    """A tar has no end-of-archive blocks: it was cut short, or written without them."""


class ShardCorruptError(ShardReadError):
    """A block of a shard differs from its checksum in the manifest, also after a second download."""


class ShardWriteError(RemoteDataError, ValueError):
    """A template or a sample cannot be written as a shard."""


class WorkerLostError(RemoteDataError, RuntimeError):
    """The worker of a task was lost several times."""


class WorkerStartError(RemoteDataError, RuntimeError):
    """Worker processes cannot start: no main guard, an object that cannot be sent, or ``memory://``."""


class ManifestError(RemoteDataError, ValueError):
    """An ``index.json`` is missing information or does not describe shards."""


class JoinError(RemoteDataError, ValueError):
    """Shard sets cannot be joined: a key is missing or twice, two sets have an extension, or their samples differ."""


class JobError(RemoteDataError, ValueError):
    """A ``TrainingJob`` or a setting for it is invalid."""


class ServiceError(RemoteDataError, RuntimeError):
    """The dataset service cannot start: its folder is already served, or it would be reachable without a token."""


class StateError(RemoteDataError, ValueError):
    """A chain cannot be resumed, or a state does not fit the chain, the listing, or the ranks and workers."""


class SampleError(RemoteDataError, ValueError):
    """A pipe cannot process a sample."""


class DecodeError(SampleError):
    """The bytes of a member cannot be decoded as its extension says."""


class EncodeError(SampleError):
    """A value cannot be encoded as its extension says."""


class CollateError(SampleError, TypeError):
    """Samples cannot be collated to a batch: they hold values, such as images, that are no tensors yet."""


class LabelError(SampleError, LookupError):
    """A file or sample has no label, or one that is not among the classes."""


class MissingKeyError(SampleError, KeyError):
    """Keys that were selected are in none of the shards."""


class MissingMemberError(SampleError, KeyError):
    """A sample has none of the requested members."""
