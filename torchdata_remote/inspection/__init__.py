"""Inspect datasets: contents of a shard, verification against the manifest, a summary, a sheet of pictures."""

from .contact_sheet import contact_sheet
from .contents import inspect_shard
from .picture_sheet import draw_sheet
from .pictures import pictures
from .summary import Summary, summarize
from .verification import verify_shards

__all__ = ["Summary", "contact_sheet", "draw_sheet", "inspect_shard", "pictures", "summarize", "verify_shards"]
