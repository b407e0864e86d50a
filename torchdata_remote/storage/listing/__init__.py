"""List a prefix of a store, several pages at a time."""
