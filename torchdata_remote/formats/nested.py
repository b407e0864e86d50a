"""Archives inside an archive: what comes before the keys of each."""

from __future__ import annotations

import re
from bisect import bisect_left, insort

from ..errors import BadMemberError, ShardReadError
from .error_policy import OnBadMember, raise_error
from .sample import naming_fault

_ENDING = re.compile(r"(?<=.)\.(tar(\.(gz|bz2|xz|zst|zstd))?|t[gbx]z2?|tzst)$", re.IGNORECASE)


def is_archive_name(name: str) -> bool:
    """Whether a name is one of a tar, compressed or not.

    >>> is_archive_name("n01440764.tar"), is_archive_name("a.tar.zst"), is_archive_name("a.tar.idx")
    (True, True, False)
    """
    return _ENDING.search(name) is not None


def without_ending(name: str) -> str:
    """The name of an archive without what tells that it is one."""
    return _ENDING.sub("", name)


def bad_inner(url: str, name: str, reason: str) -> BadMemberError:
    """The error for a member of an archive of archives that cannot be read as one of these.

    Args:
        url: of the outer archive, as errors may show it.
        name: of the member.
        reason: why not.
    """
    return BadMemberError(
        f"{url}: the archive {name!r:.200} inside it cannot be read: {reason}. Take it out, or pass "
        "on_bad_member=skip_with_warning to leave such members out.",
        url=url,
        member=name,
        reason=reason,
    )


class NestedPrefixes:
    """The prefixes of the archives inside one archive, of which no two can give the same key.

    Args:
        url: of the outer archive, for error messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._taken: list[str] = []  # sorted

    def of(self, name: str, on_bad_member: OnBadMember = raise_error) -> str | None:
        """The prefix of the next inner archive: its name without ending, and a slash.

        Args:
            name: of the inner archive.
            on_bad_member: asked about a name that cannot be a folder's; if it returns, ``None`` is returned.

        Raises:
            BadMemberError: if the name cannot be a folder's.
            ShardReadError: if the keys may be those of another one.
        """
        path = name[2:] if name.startswith("./") else name
        fault = naming_fault(path)
        if fault is not None:
            on_bad_member(bad_inner(self._url, name, fault))
            return None
        prefix = without_ending(path) + "/"
        if self._contains_or_is_within(prefix):
            what = f"the keys of {name!r:.200} would begin with {prefix!r:.200}, as those of another may"
            raise ShardReadError(f"{self._url}: {what}. Rename one of the archives inside it.", url=self._url)
        insort(self._taken, prefix)
        return prefix

    def _contains_or_is_within(self, prefix: str) -> bool:
        taken = self._taken
        place = bisect_left(taken, prefix)
        if place < len(taken) and taken[place].startswith(prefix):
            return True
        above = (prefix[: slash.end()] for slash in re.finditer("/", prefix))
        return any(taken[bisect_left(taken, other, hi=place) % len(taken)] == other for other in above if taken)
