"""Looking at data sets: what a shard holds, whether it is what the manifest says, and a sheet of pictures."""

from .contact_sheet import contact_sheet
from .inspecting import inspect_shard
from .pictures import pictures
from .verifying import verify_shards

__all__ = ["contact_sheet", "inspect_shard", "pictures", "verify_shards"]
