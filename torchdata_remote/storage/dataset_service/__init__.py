"""The dataset service as a store."""
