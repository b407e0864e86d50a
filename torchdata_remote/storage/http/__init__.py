"""HTTP: content encodings, ranges, reading by urllib3."""
