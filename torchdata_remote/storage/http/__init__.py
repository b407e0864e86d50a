"""HTTP as the transports speak it: encodings, ranges, reading by urllib3."""
