"""Threads that survive forks, finalizers and the interpreter's end."""
