"""Commands that write: ``shard``, ``manifest`` and ``index``."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import CycloptsError, Parameter

from ..core.options import StorageOptions
from ..core.urls import redact, split_url
from ..errors import RemoteDataError
from .shared import Count, CountOrNone, Json, OnBadMember, Seed, list_objects, print_line, printable

if TYPE_CHECKING:
    from ..errors import BadMemberError
    from ..formats.labels import Labeller
    from ..formats.manifest import ShardInfo

_FORMS = ("parent-directory", "pattern", "classes-json", "by-number", "ground-truth", "meta-mat")
_BASES = ("id_base", "number_base", "base_name")


def shard(
    source: str,
    template: str,
    *,
    max_shard_bytes: Count | None = None,
    max_shard_samples: Count | None = None,
    seed: Seed = 0,
    num_workers: CountOrNone = 0,
    pattern: str | None = None,
    split_name: Literal["first", "last"] | None = None,
    on_bad_member: OnBadMember = "raise",
    append: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    quiet: bool = False,
    provenance: bool = False,
    storage_options: Json = None,
    source_options: Json = None,
    labels: str | None = None,
    id_base: CountOrNone | None = None,
    number_base: CountOrNone | None = None,
    base_name: str | None = None,
    transform: str | None = None,
) -> None:
    """Write a dataset to tar shards, in a random order of all its samples.

    An interrupted job resumes when it is started again.

    example: torchdata-remote shard photos/ 's3://bucket/train/{shard:06d}.tar' --labels parent-directory

    Args:
        source: folder of files, tar, tar of tars, or shards; URL, glob or brace range; [*] is a literal star
        template: URL of the shards, such as s3://bucket/train/{shard:06d}.tar
        max_shard_bytes: limit of a shard in bytes, headers and padding included
        max_shard_samples: limit of samples in a shard
        seed: of the random order of all samples; none keeps the order of the source
        num_workers: worker processes; with 0 this process writes
        pattern: glob, which files of the source are used
        split_name: dot at which names of files are split into key and extension
        on_bad_member: what to do with a member that cannot be part of a sample, such as README: stop, or leave it out
            with a warning and count it
        append: add shards to existing ones
        overwrite: replace existing shards
        resume: resume an interrupted job, instead of starting over
        quiet: no progress bar, and no line for each shard
        provenance: write the origin of each sample beside the shards
        storage_options: JSON for the stores, in fsspec's vocabulary
        source_options: JSON for the source's store, if they differ
        labels: parent-directory, pattern:REGEX, classes-json:URL, by-number:URL, ground-truth:URL or meta-mat:URL
        id_base: the number of a label file's first class
        number_base: the number of a label file's first image
        base_name: prefix of the image names of a ground truth, before the eight digits
        transform: MODULE:FUNCTION, sample -> sample, or None to leave it out
    """
    # As the function names them, which has defaults of its own
    options = {name: value for name, value in locals().items() if value is not None}
    from ..sharding import shard_dataset

    stores = {split_url(template)[0]: storage_options}
    if source_options is not None:
        stores[split_url(source)[0]] = source_options
    of_labels = {name: options.pop(name) for name in ("labels", *_BASES) if name in options}
    if of_labels:
        options["labels"] = _labeller(of_labels, stores)
    if transform is not None:
        options["transform"] = _imported(transform)
    options["seed"] = seed
    options["on_bad_member"], left_out = _policy(on_bad_member)
    options["progress"] = not options.pop("quiet")
    shards = shard_dataset(options.pop("source"), options.pop("template"), **options)
    for one in [] if quiet else shards:
        _print_shard(one)
    _print_total(shards, left_out)


def _labeller(options: dict[str, Any], stores: Mapping[str, dict[str, Any] | None]) -> Labeller:
    """Make the labeller that the options about labels describe.

    Args:
        options: by name.
        stores: scheme -> storage options.
    """
    from ..formats import labels

    form, *values = options.pop("labels", "").split(":", 1)
    if form not in _FORMS:
        raise CycloptsError(msg=f"--labels: expected a form of {', '.join(_FORMS)}, got {form!r}.")
    if values and form not in _FORMS[:2]:
        options["storage_options"] = stores.get(split_url(values[0])[0])
    try:
        maker = getattr(labels, "from_pattern" if form == "pattern" else form.replace("-", "_"))
        labeller: Labeller = maker(*values, **options)
    except RemoteDataError:
        raise
    except (TypeError, ValueError) as error:  # of arguments that this form lacks or does not have
        raise CycloptsError(msg=f"--labels {form}: {error}") from error
    except ImportError as error:  # of an optional package
        raise RemoteDataError(f"--labels: {error}") from error
    return labeller


def _imported(name: str) -> Any:
    """Import the function that ``module:function`` names; the module may be in the working directory."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if ":" not in name:
            raise ValueError("it is not of the form module:function")
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise CycloptsError(msg=f"--transform {name!r} cannot be imported: {error}") from error


class _LeftOut(Counter[str]):
    """Leaves bad members out and counts them by reason, with a warning for the first one of each archive."""

    def __call__(self, error: BadMemberError) -> None:
        from ..formats.error_policy import skip_with_warning

        skip_with_warning(error)
        self[str(error.reason)] += 1


def _policy(choice: OnBadMember) -> tuple[Any, _LeftOut]:
    from ..formats.error_policy import raise_error

    left_out = _LeftOut()
    return (left_out if choice == "skip" else raise_error), left_out


def _print_shard(shard: ShardInfo) -> None:
    print_line(f"{shard.num_samples:>10,} samples  {printable(redact(shard.url))}")


def _print_total(shards: list[ShardInfo], left_out: _LeftOut) -> None:
    for reason, number in left_out.items():
        print_line(f"{number:>10,} members left out: {printable(reason)}")
    num_samples, num_bytes = sum(shard.num_samples for shard in shards), sum(shard.num_bytes for shard in shards)
    print_line(f"{num_samples:>10,} samples in {len(shards):,} shards of {num_bytes:,} bytes: manifest written")


def manifest(
    folder: str,
    *,
    pattern: str | None = None,
    on_bad_member: OnBadMember = "raise",
    overwrite: bool = False,
    quiet: bool = False,
    storage_options: Json = None,
) -> None:
    """Write the manifest, the indexes and the keys of tar shards.

    Each shard of a folder is read once; an index and a file of keys are written beside it, and index.json last.

    example: torchdata-remote manifest s3://bucket/train/

    Args:
        folder: URL or path, such as s3://bucket/train/
        pattern: glob that the shards' names match; all tars by default, in any case and compression
        on_bad_member: what to do with a member that cannot be part of a sample, such as README: stop, or leave it out
            with a warning and count it
        overwrite: replace an existing manifest, indexes and files of keys
        quiet: no progress bar, and no line for each shard
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from ..sharding import index_shards

    policy, left_out = _policy(on_bad_member)
    shards = index_shards(
        folder,
        pattern=pattern,
        overwrite=overwrite,
        on_shard=(lambda shard: None) if quiet else _print_shard,
        progress=not quiet,
        on_bad_member=policy,
        storage_options=storage_options,
    )
    _print_total(shards, left_out)


def index(
    url: str,
    *,
    output: Annotated[str, Parameter(("--output", "-o"))],
    pattern: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    storage_options: Json = None,
) -> None:
    """Write the paths of all objects below a URL as a JSON array.

    Datasets accept it as index=, so that millions of objects are listed once. It holds keys of the bucket, or paths
    below a local folder.

    example: torchdata-remote index s3://bucket/train/ -o train.json.gz

    Args:
        url: folder or prefix, glob, or brace range
        output: URL or path to write; compressed by gzip if it ends in .gz
        pattern: glob that base names match, or paths below the URL if it has a slash
        overwrite: replace an existing index
        quiet: no progress bar
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from ..fetch.listing.index_file import write_index

    objects, options = list_objects(url, storage_options, pattern=pattern), StorageOptions(storage_options)
    num_objects = write_index(output, objects, url, options=options, overwrite=overwrite)
    print_line(f"{num_objects:>10,} objects: {printable(redact(output))} written")
