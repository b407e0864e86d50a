"""Objects kept on a local disk."""
