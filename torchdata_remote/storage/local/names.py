"""Names of this package's own files, and errors for links."""

from __future__ import annotations

import errno
import os

from ...errors import AccessDeniedError, ObjectNotFoundError

PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of unfinished files, which a killed writer leaves behind
_OURS = ".torchdata_remote"  # prefix of files that belong to no dataset: the state of a pull, uploads of a service


def is_internal_name(name: str) -> bool:
    """Whether a file or folder of this name is one of this package's own, which are never listed."""
    return name.endswith(PARTIAL_SUFFIX) or name.startswith(_OURS)


def symlink_error(path: str) -> AccessDeniedError:
    """Make the error for a link, where links are not followed."""
    return AccessDeniedError(
        f"file://{path} is a link. Links are not followed in a folder that is served to others. Replace it by the file "
        "itself or a hard link, or mount the folder.",
        url=f"file://{path}",
    )


def leads_nowhere(path: str) -> bool:
    """Whether a link has no target, or leads in a circle."""
    try:
        os.stat(path)
    except OSError as error:
        # ENOTDIR: the target is below a file
        return error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)
    return False


def broken_link(path: str) -> str:
    """Say where a link leads that leads nowhere, for errors."""
    try:
        return f"a broken link: it leads to {os.readlink(path)!r}, which is not there or leads back to it"
    except OSError:  # one above it, or removed since
        return "a broken link"


def broken_link_error(path: str) -> ObjectNotFoundError:
    """Make the error for a link that leads nowhere, among the objects that were asked for."""
    return ObjectNotFoundError(
        f"file://{path} is {broken_link(path)}. Repair or remove the link, or pass a pattern= that leaves it out.",
        url=f"file://{path}",
    )
