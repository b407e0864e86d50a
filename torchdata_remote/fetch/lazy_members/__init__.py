"""Streams that pass over large members, which are read as files where they are needed."""
