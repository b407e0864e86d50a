"""Parquet and Arrow files: their footers, row groups as units of splitting, and columns by ranged reads."""
