"""URL templates of shards: ``s3://bucket/train/{shard:06d}.tar``."""

from __future__ import annotations

import os
import re
import string

from ..core import arguments as check
from ..core.urls import LOCAL, join_url, redact, split_url
from ..errors import ShardWriteError
from ..formats.companions import COMPANION_ENDINGS

_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_BESIDE_BYTES = max(map(len, COMPANION_ENDINGS))
_MAX_NAME_BYTES = 255
_NUMBER_FORMAT = re.compile(r"(0[1-9]\d?)?d?")


def _unformatted(folder: str) -> str:
    """Undouble the braces of a template's folder. A closing brace without an opening one may stand alone."""
    if "{" not in folder:
        return folder
    parts = list(string.Formatter().parse(folder))
    if any(name is not None for _, name, _, _ in parts):
        raise ValueError("it needs exactly one {shard} field, in its base name; other braces are doubled: {{ and }}")
    return "".join(text for text, _, _, _ in parts)


class ShardTemplate:
    """A URL with one ``{shard}`` field in its base name.

    Args:
        url_template: with an optional format in the field, such as ``{shard:06d}``. Other braces are doubled, as for
            ``str.format``.

    Raises:
        ShardWriteError: for anything else.

    Example:
        >>> template = ShardTemplate("s3://b/train/{shard:03d}.tar")
        >>> template.url(7), template.index("s3://b/train/010.tar"), template.index("s3://b/train/x.tar")
        ('s3://b/train/007.tar', 10, None)
    """

    def __init__(self, url_template: str) -> None:
        example = "s3://bucket/train/{shard:06d}.tar"
        folder, slash, base = check.path_or_url("url_template", url_template, example=example).rpartition("/")
        try:
            before, after = "", ""
            specs: list[tuple[str, str | None, str | None]] = []
            for text, name, spec, conversion in string.Formatter().parse(base):
                before, after = (before, after + text) if specs else (before + text, after)
                if name is not None:
                    specs.append((name, spec, conversion))
            folder = _unformatted(folder)
            if [name for name, _, _ in specs] != ["shard"]:
                raise ValueError("it needs exactly one {shard} field, in its base name")
            if not _NUMBER_FORMAT.fullmatch(specs[0][1] or "") or specs[0][2]:
                raise ValueError(f"{specs[0][1]!r} is not a number format such as 06d")
            if not base.endswith(_ENDINGS):
                raise ValueError(f"the name must end in one of {', '.join(_ENDINGS)}")
        except (ValueError, KeyError, IndexError) as error:
            raise ShardWriteError(
                f"{redact(url_template)}: {error}. Expected a template such as s3://bucket/train/{{shard:06d}}.tar.",
                url=redact(url_template),
            ) from error
        scheme, bucket, path = split_url(folder + slash if slash else "./")
        longest = _MAX_NAME_BYTES - (_BESIDE_BYTES if base.endswith(".tar") else 0)
        if scheme in LOCAL and len(os.fsencode(base.format(shard=0))) > longest:
            raise ShardWriteError(
                f"{redact(url_template)}: the base name has more than {longest} bytes. File systems allow "
                f"{_MAX_NAME_BYTES}, of which the files beside a shard need {_BESIDE_BYTES}: choose a shorter one.",
                url=redact(url_template),
            )
        self.folder = join_url(scheme, bucket, path if path.endswith("/") or not path else path + "/")
        self._base = base
        self.before = self.folder + before
        self._regex = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))

    def url(self, index: int) -> str:
        """Return the URL of the shard with this number."""
        return self.folder + self._base.format(shard=index)

    def index(self, url: str) -> int | None:
        """Return the number of the shard with this URL, or ``None`` if the URL does not match the template."""
        match = self._regex.fullmatch(url.rpartition("/")[2])
        if match is None or len(match[1]) > 18:
            return None
        index = int(match[1])
        return index if self.url(index) == url else None  # else the number is formatted differently
