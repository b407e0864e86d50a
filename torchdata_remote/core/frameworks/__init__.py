"""Detect, on the call stack, the training framework that reads a loader, and follow what it does."""
