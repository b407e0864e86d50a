"""A folder of a store, page by page."""
