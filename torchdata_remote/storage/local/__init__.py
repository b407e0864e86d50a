"""Local files."""
