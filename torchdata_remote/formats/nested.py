"""Archives inside an archive: their names, and the prefix of the keys of each."""

from __future__ import annotations

import re

from ..errors import BadMemberError, ShardReadError
from .error_policy import OnBadMember, raise_error
from .sample import naming_fault

_ENDING = re.compile(r"(?<=.)\.(tar(\.(gz|bz2|xz|zst|zstd))?|t[gbx]z2?|t[zb]2|(?-i:taz)|tzst)$", re.IGNORECASE)


def is_archive_name(name: str) -> bool:
    """Return whether a name is that of a tar, compressed or not.

    >>> is_archive_name("n01440764.tar"), is_archive_name("a.tar.zst"), is_archive_name("a.tar.idx")
    (True, True, False)
    """
    return _ENDING.search(name) is not None


def without_ending(name: str) -> str:
    """Remove the extension of an archive from its name."""
    return _ENDING.sub("", name)


def bad_inner(url: str, name: str, reason: str) -> BadMemberError:
    """Create the error for a member of an archive of archives that cannot be read as an archive.

    Args:
        url: of the outer archive, redacted.
        name: of the member.
        reason: for the message.
    """
    return BadMemberError(
        f"{url}: the archive {name!r:.200} inside it cannot be read: {reason}. Remove it, or pass "
        "on_bad_member=skip_with_warning to skip such members.",
        url=url,
        member=name,
        reason=reason,
    )


class NestedPrefixes:
    """Assigns key prefixes to the archives inside one archive, such that no two of them can contain the same key.

    Args:
        url: of the outer archive, for error messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        # Prefixes, and the folders in which they are
        self._taken: set[str] = set()
        self._above: set[str] = set()

    def of(self, name: str, on_bad_member: OnBadMember = raise_error) -> str | None:
        """Return the prefix of the next nested archive: its name without extension, and a slash.

        Args:
            name: of the nested archive.
            on_bad_member: called with the error of a name that cannot be a folder's; if it returns, so does this, with
                ``None``.

        Raises:
            BadMemberError: if the name cannot be a folder's.
            ShardReadError: if another archive may contain the same keys.
        """
        path = name[2:] if name.startswith("./") else name
        fault = naming_fault(path)
        if fault is not None:
            on_bad_member(bad_inner(self._url, name, fault))
            return None
        prefix = without_ending(path) + "/"
        within = [prefix[: slash.end()] for slash in re.finditer("/", prefix)]
        if prefix in self._above or not self._taken.isdisjoint(within):
            what = f"the keys of {name!r:.200} would begin with {prefix!r:.200}, as those of another may"
            raise ShardReadError(f"{self._url}: {what}. Rename one of the archives inside it.", url=self._url)
        self._taken.add(prefix)
        self._above.update(within)
        return prefix
