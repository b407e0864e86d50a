"""Base classes and helpers of the pipes."""
