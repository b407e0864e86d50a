"""Datasets and their files: names, lives, versions, digests, archives."""
