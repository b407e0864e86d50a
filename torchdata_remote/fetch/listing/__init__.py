"""From a source URL to the objects that it names."""
