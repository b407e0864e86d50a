"""One listing for a rank's processes."""
