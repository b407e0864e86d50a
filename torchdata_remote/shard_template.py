"""Names of shards: ``s3://bucket/train/{shard:06d}.tar``."""

from __future__ import annotations

import re
import string

from .errors import ShardWriteError
from .urls import join_url, redact, split_url


class ShardTemplate:
    """A URL with one ``{shard}`` field in its base name.

    Args:
        url_template: as a user wrote it. The field takes a format, such as ``{shard:06d}``.

    Raises:
        ShardWriteError: if it is not such a template.

    Example:
        >>> template = ShardTemplate("s3://b/train/{shard:03d}.tar")
        >>> template.url(7), template.index("s3://b/train/010.tar"), template.index("s3://b/train/x.tar")
        ('s3://b/train/007.tar', 10, None)
    """

    def __init__(self, url_template: str) -> None:
        folder, slash, base = url_template.rpartition("/")
        try:
            fields = [(text, name) for text, name, _, _ in string.Formatter().parse(base)]
            names = [name for _, name in fields if name is not None]
            if names != ["shard"] or "{" in folder or base.format(shard=0) == base.format(shard=1):
                raise ValueError("it needs exactly one {shard} field, in its base name")
            if not base.endswith(".tar"):
                raise ValueError("shards are plain tar and end in .tar")
        except (ValueError, KeyError, IndexError) as error:
            raise ShardWriteError(
                f"{redact(url_template)}: {error}. Expected a template such as s3://bucket/train/{{shard:06d}}.tar.",
                url=redact(url_template),
            ) from error
        scheme, bucket, path = split_url(folder + slash if slash else "./")
        self.folder = join_url(scheme, bucket, path if path.endswith("/") or not path else path + "/")
        self._base = base
        before = fields[0][0]
        after = "".join(text for text, _ in fields[1:])
        self.before = self.folder + before
        self._regex = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))

    def url(self, index: int) -> str:
        """Address of the shard with this number."""
        return self.folder + self._base.format(shard=index)

    def index(self, url: str) -> int | None:
        """Number of the shard at this address, or ``None`` if it is not one of this template."""
        match = self._regex.fullmatch(url.rpartition("/")[2])
        return int(match[1]) if match and url.startswith(self.folder) else None
