"""Transports behind one interface: open a store by the URL of an object."""
