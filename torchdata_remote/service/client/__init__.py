"""The service as an fsspec filesystem."""
