"""The dataset service: datasets behind one address, for a cluster without an object store."""
