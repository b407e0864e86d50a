"""Client side of the dataset service, as a store."""
