"""What a data set looks like: its kind, sizes, labels and pictures, and the code to train from it."""

from ._sheet import draw_sheet
from .summary import Summary, summarize

__all__ = ["Summary", "draw_sheet", "summarize"]
