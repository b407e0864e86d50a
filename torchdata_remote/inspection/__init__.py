"""Inspect datasets: contents of a shard, verification against the manifest, a summary, a sheet of pictures."""

from .contact_sheet import Cell, contact_sheet, thumbnail
from .contents import ShardContents, inspect_shard
from .contents_plot import draw_contents, ordered_classes
from .faults import Fault
from .picture_sheet import draw_sheet
from .pictures import class_names, pictures
from .plots import require_plot, save_plot, shortened
from .recorded_stats import RecordedStats
from .summary import Summary, summarize
from .timeline import draw_timeline
from .trace import Trace, verdict
from .training_stats import ProcessStats, TrainingStats
from .verification import verify_shards

__all__ = [
    "Cell",
    "Fault",
    "ProcessStats",
    "RecordedStats",
    "ShardContents",
    "Summary",
    "Trace",
    "TrainingStats",
    "class_names",
    "contact_sheet",
    "draw_contents",
    "draw_sheet",
    "draw_timeline",
    "inspect_shard",
    "ordered_classes",
    "pictures",
    "require_plot",
    "save_plot",
    "shortened",
    "summarize",
    "thumbnail",
    "verdict",
    "verify_shards",
]
