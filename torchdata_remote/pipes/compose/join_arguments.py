"""Check the sets, members and storage options of ``join``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...core.arguments import check
from ...core.arguments.suggestions import did_you_mean
from ...core.options import StorageOptions
from ...core.urls import split_url
from ...fetch.listing.patterns import expand_braces
from ...storage import check_options
from .joined_reader import Members


def sets_of(sets: Any) -> None:
    """Check the names of the sets.

    Raises:
        TypeError, ValueError: says which form is expected.
    """
    expected = 'sets must be a dict {name: url}, such as {"image": "s3://b/images/", "caption": "s3://b/captions/"}'
    if not isinstance(sets, Mapping):
        raise check.marked(TypeError(f"{expected}, got {check.a_kind(sets)}."))
    for name in sets:
        if not isinstance(name, str):
            raise check.marked(TypeError(f"{expected}, got the name {check.shown(name)}."))
    if len(sets) < 2:
        advice = "Write tdr.stream_shards(url) for one set." if sets else "Pass at least two sets."
        raise check.marked(ValueError(f"{expected}, got {len(sets)} sets. {advice}"))


def members_of(members: Any, sets: Mapping[str, Any]) -> Members:
    """Check which members are selected, and return the extensions of each set in lower case; ``None`` for all.

    Raises:
        TypeError, ValueError: for another form, an unknown set, or an empty selection.
    """
    expected = 'members must be a dict {name: extensions}, such as {"caption": ("txt",)}'
    if members is not None and not isinstance(members, Mapping):
        raise check.marked(TypeError(f"{expected}, got {check.shown(members)}."))
    selected: dict[str, frozenset[str] | None] = dict.fromkeys(sets)
    for name, extensions in (members or {}).items():
        require_set("members", name, sets)
        found = [extensions] if isinstance(extensions, str) else extensions
        found = list(found) if isinstance(found, Iterable) else [None]
        if not all(isinstance(one, str) for one in found):
            raise check.marked(TypeError(f"{expected}, got {check.shown(extensions)} for {name!r}."))
        if not found:
            raise check.marked(
                ValueError(f"members selects nothing of {name!r}. Leave the set out, or name extensions.")
            )
        selected[name] = frozenset(one.lower().removeprefix(".") for one in found)
    return selected


def require_set(argument: str, name: Any, sets: Mapping[str, Any]) -> None:
    """Require the name of a set."""
    if name not in sets:
        known = ", ".join(map(repr, sets))
        raise check.marked(
            ValueError(f"{argument} names the set {name!r}, and there are {known}" + (did_you_mean(name, sets) or "."))
        )


def options_of(given: Any, sources: Mapping[str, list[str] | None]) -> tuple[dict[str, StorageOptions], StorageOptions]:
    """Return the storage options of each set, and those that read all of them.

    Args:
        given: options for all sets, or name of a set -> its options.
        sources: URLs of each set; ``None`` for a pipe of URLs.

    Raises:
        ValueError: for different options of the same bucket, or of a set whose URLs are not known yet.
        UrlError: for options that the store of a URL does not have.
    """
    each = (
        isinstance(given, Mapping)
        and given
        and all(name in sources and isinstance(value, Mapping) for name, value in given.items())
    )
    by_set = {name: StorageOptions(given.get(name) if each else given) for name in sources}
    for name, urls in sources.items():
        for url in urls or ():
            check_options(url, by_set[name])
    if not each:
        return by_set, StorageOptions(given)
    by_bucket: dict[tuple[str, str], StorageOptions] = {}
    for name, urls in sources.items():
        if urls is None:
            raise check.marked(
                ValueError(f"storage_options for each set need its URLs, and {name!r} is a pipe: pass options for all.")
            )
        for url in (single for source in urls for single in expand_braces(source)):
            bucket = split_url(url)[:2]
            if by_bucket.setdefault(bucket, by_set[name]).identity() != by_set[name].identity():
                raise check.marked(
                    ValueError(f"storage_options differ for two sets in the same bucket, {'://'.join(bucket)}.")
                )
    return by_set, StorageOptions.by_bucket(by_bucket)
