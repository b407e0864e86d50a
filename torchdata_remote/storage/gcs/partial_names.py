"""Names of objects that are complete, but not yet under their own name.

Google Cloud Storage supports no conditions on multipart uploads. So a large object that must not replace another one
is uploaded under such a name, and then copied on the condition that its own name is free. Listings omit these names.
"""

from __future__ import annotations

import re

from ..entry_table import EntryTable
from ..local.names import PARTIAL_SUFFIX
from ..protocol import Page

_MAX_NAME_BYTES = 1024
_PARTIAL = re.compile(rf"\.(.*)-[0-9a-f]{{32}}{re.escape(PARTIAL_SUFFIX)}", re.DOTALL)


def partial_path(path: str, upload: str) -> str:
    """Return the name under which an object is uploaded, in the folder of its own name.

    The end of a name is left out if it would be longer than a name may be (https://cloud.google.com/storage/docs/objects#naming).

    >>> partial_path("train/0.tar", "0" * 32)
    'train/.0.tar-00000000000000000000000000000000.torchdata_remote-partial'
    """
    folder, slash, name = path.rpartition("/")
    around = f"{folder}{slash}.-{upload}{PARTIAL_SUFFIX}"
    num_bytes = max(0, _MAX_NAME_BYTES - len(around.encode()))
    shortened = name.encode()[:num_bytes].decode(errors="ignore")
    return f"{folder}{slash}.{shortened}-{upload}{PARTIAL_SUFFIX}"


def own_name(path: str) -> str | None:
    """Return the base name of the object that was uploaded under this path; ``None`` if it is a path of another kind.

    >>> own_name(partial_path("train/0.tar", "0" * 32)), own_name("train/0.tar")
    ('0.tar', None)
    """
    found = _PARTIAL.fullmatch(path.rpartition("/")[2])
    return None if found is None else found[1]


def without_partial(page: Page) -> Page:
    """Return a page without such objects."""
    keys = EntryTable.of(page.entries).keys
    if not any(key.endswith(PARTIAL_SUFFIX) for key in keys):
        return page
    return page._replace(
        entries=EntryTable.of(page.entries).selected([not key.endswith(PARTIAL_SUFFIX) for key in keys])
    )
