"""URLs of what is put together from shards: a mark, a code that holds the plan, the URL of the first shard, the mark.

The first mark and the code are a scheme that no store has, so other readers refuse the URL. The second mark is at the
end, so a URL that was rebuilt from its path is not taken for the whole shard.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import NamedTuple

_CODED = re.compile(r"(view|joined)\+([A-Za-z0-9.-]*)\+(.*)\+\1", re.DOTALL)
_ALTERNATIVES = b"-."  # for + and / of base64: the code stays part of the scheme
_LEVEL = 1


class CodedUrl(NamedTuple):
    """The parts of such a URL.

    Args:
        code: text of the plan.
        url: of the first shard.
    """

    code: str
    url: str


def encode(plan: bytes) -> str:
    """Return the code of a plan.

    >>> decode(encode(b"plan"))
    b'plan'
    """
    return base64.b64encode(zlib.compress(plan, _LEVEL), _ALTERNATIVES).decode().rstrip("=")


def decode(code: str) -> bytes:
    """Return the plan of a code.

    Raises:
        ValueError, zlib.error: if the code was changed.
    """
    return zlib.decompress(base64.b64decode(code + "=" * (-len(code) % 4), _ALTERNATIVES, validate=True))


def coded_url(mark: str, code: str, url: str) -> str:
    """Return the URL with a mark, which is ``view`` or ``joined``.

    >>> coded_url("view", "AAA", "s3://photos/0.tar")
    'view+AAA+s3://photos/0.tar+view'
    """
    return f"{mark}+{code}+{url}+{mark}"


def split_coded_url(mark: str, url: str) -> CodedUrl | None:
    """Return the parts of a URL with a mark; ``None`` if its end was changed, or it has another mark.

    >>> split_coded_url("view", "view+AAA+s3://photos/0.tar+view")
    CodedUrl(code='AAA', url='s3://photos/0.tar')
    """
    match = _CODED.fullmatch(url)
    return CodedUrl(match[2], match[3]) if match is not None and match[1] == mark else None
