"""Transports behind one protocol: the only door to stores."""
