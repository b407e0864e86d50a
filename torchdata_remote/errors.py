"""Every error that this package raises on purpose.

::

    RemoteDataError
    ├── UrlError (ValueError)                   a URL that nobody can read
    ├── EmptyListingError (FileNotFoundError)   a source URL under which nothing was found
    ├── EmptyShareError (ValueError)            fewer shards than readers
    ├── UnequalListingError (ValueError)        ranks that list different objects
    ├── UnsplitError (ValueError)               readers that would all hand out the same samples
    ├── SplitTwiceError (ValueError)            a trainer that would split anew what the chain splits already
    ├── StorageError (OSError)                  the store said no
    │   ├── ObjectNotFoundError (FileNotFoundError)
    │   ├── AccessDeniedError (PermissionError)
    │   │   └── ExpiredCredentialsError         renewed once, and still refused
    │   ├── ObjectExistsError (FileExistsError) nothing is overwritten unless asked for
    │   ├── ObjectChangedError                  replaced while it was being read
    │   ├── ContentEncodingError (ValueError)   stored compressed, under a name that does not say so
    │   └── TransientStorageError (ConnectionError)  worth repeating, and was repeated
    ├── ShardReadError (ValueError)             bytes that are not the shard that was written
    │   ├── BadMemberError                      a member that cannot be part of a sample, in a sound archive
    │   ├── MissingEndError                     a tar without its end-of-archive blocks
    │   └── ShardCorruptError                   they differ from the manifest's checksums, twice
    ├── ShardWriteError (ValueError)            samples that cannot become a shard
    ├── WorkerLostError (RuntimeError)          a process that wrote shards did not come back
    ├── ManifestError (ValueError)              an index.json that cannot be used
    ├── JobError (ValueError)                   a training job that cannot be rendered
    ├── ServiceError (RuntimeError)             the dataset service cannot be started so
    ├── StateError (ValueError)                 a chain that cannot be resumed, or a state that is not of this one
    └── SampleError (ValueError)                one sample is not what the pipe needs
        ├── DecodeError
        ├── EncodeError
        ├── LabelError (LookupError)
        └── MissingMemberError (KeyError)

Each can be built from its message alone: torch rebuilds an exception that leaves a DataLoader worker
from one string, and turns those it cannot rebuild into ``RuntimeError``.
"""

from __future__ import annotations


class RemoteDataError(Exception):
    """Base of all errors of this package.

    Args:
        message: where, what came, what was expected, and what to do.
        url: the object or prefix concerned, without credentials.
    """

    def __init__(self, message: str, *, url: str | None = None) -> None:
        super().__init__(message)
        self.url = url

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0])


class UrlError(RemoteDataError, ValueError):
    """A URL without a scheme that is known here, without a bucket, or with a broken brace range."""


class EmptyListingError(RemoteDataError, FileNotFoundError):
    """Nothing was found under a source URL, or nothing that matches the pattern."""


class EmptyShareError(RemoteDataError, ValueError):
    """There are fewer shards than slots (ranks x workers), so that one of them would wait for ever."""


class UnequalListingError(RemoteDataError, ValueError):
    """The ranks of a training list different objects, so that their shares would not make up the whole."""


class UnsplitError(RemoteDataError, ValueError):
    """Several ranks or workers would each hand out everything, and repetition was not asked for."""


class SplitTwiceError(RemoteDataError, ValueError):
    """A training framework would split the samples over its processes, and the chain has done so already."""


class StorageError(RemoteDataError, OSError):
    """A store refused a request, or a file system a call.

    Args:
        message: where, what came, what was expected, and what to do.
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
        self.start_byte, self.end_byte, self.etag = start_byte, end_byte, etag
        self.attempts, self.elapsed_s = attempts, elapsed_s


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """No such object or bucket."""


class AccessDeniedError(StorageError, PermissionError):
    """The store does not let these credentials do that, or there are no credentials."""


class ExpiredCredentialsError(AccessDeniedError):
    """The store takes the credentials for expired, or the clock for wrong, also after they were looked up anew."""


class ObjectExistsError(StorageError, FileExistsError):
    """Something is there already, and overwriting was not asked for."""


class ObjectChangedError(StorageError):
    """The object's etag or size is no longer what the listing or the first part said."""


class ContentEncodingError(StorageError, ValueError):
    """The object is stored with a Content-Encoding such as ``gzip``: its bytes are not those of the file it names."""


class TransientStorageError(StorageError, ConnectionError):
    """A fault that may pass: a reset, a time-out, a 5xx answer. Raised once retries have ended."""

    likely_permanent = False  # a broken answer or an unknown host name: repeated a few times, not until the deadline
    overloaded = False  # whether the store asked for fewer requests (503, 429)
    retry_after_s: float | None = None  # the wait that it asked for


class ShardReadError(RemoteDataError, ValueError):
    """A shard that is cut short, damaged, or not made of samples."""


class BadMemberError(ShardReadError):
    """A member of a sound archive that cannot be part of a sample: without an extension, or with one that is there.

    Args:
        message: where, what came, what was expected, and what to do.
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
    """A tar that ends after a member, where its end-of-archive blocks should be: cut short, or written without them."""


class ShardCorruptError(ShardReadError):
    """A block of a shard that differs from its checksum in the manifest, also when it was fetched again."""


class ShardWriteError(RemoteDataError, ValueError):
    """A template or a sample that cannot be written as part of a shard."""


class WorkerLostError(RemoteDataError, RuntimeError):
    """An executor did not bring back what it was given, several times."""


class ManifestError(RemoteDataError, ValueError):
    """An ``index.json`` that does not describe shards."""


class JobError(RemoteDataError, ValueError):
    """A ``TrainingJob``, or a setting for it, of which no manifests can be made."""


class ServiceError(RemoteDataError, RuntimeError):
    """The dataset service cannot begin: its folder is served already, or others could reach it without a token."""


class StateError(RemoteDataError, ValueError):
    """A chain that has no state, or a state that does not fit the chain, the listing or the world."""


class SampleError(RemoteDataError, ValueError):
    """A sample that a pipe cannot work on."""


class DecodeError(SampleError):
    """The bytes of a member are not what its extension says."""


class EncodeError(SampleError):
    """A value that cannot be written under its extension."""


class LabelError(SampleError, LookupError):
    """No label, or a label that is not among the classes."""


class MissingMemberError(SampleError, KeyError):
    """A sample lacks every member that was asked for."""
