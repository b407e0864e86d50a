"""Adapters to training frameworks, one module each; frameworks are optional and imported on first use."""
