"""The service that public tests use, too."""

from tests.service.conftest import served, served_root

__all__ = ["served", "served_root"]
