"""The handlers of requests, and their description."""
