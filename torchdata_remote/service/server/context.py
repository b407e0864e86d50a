"""What the answers to all requests have in common."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from .dataset_root import DatasetRoot
from .digests import Digests
from .limits import ServiceLimits
from .summary_cache import SummaryCache
from .uploads import Uploads


@dataclass(frozen=True)
class ServiceContext:
    """Datasets, and what is known of them.

    Args:
        shelf: where they lie.
        digests: of their files.
        uploads: that are not complete.
        limits: of what is taken.
        looks: what the page shows of datasets.
    """

    shelf: DatasetRoot
    digests: Digests
    uploads: Uploads
    limits: ServiceLimits
    looks: SummaryCache

    @classmethod
    def at(cls, shelf: DatasetRoot, limits: ServiceLimits) -> ServiceContext:
        """That of a shelf."""
        digests = Digests(shelf)
        return cls(shelf, digests, Uploads(shelf, digests, limits), limits, SummaryCache())

    @staticmethod
    def of(request: Request) -> ServiceContext:
        """That of the application which answers a request."""
        hosting: ServiceContext = request.app.state.hosting
        return hosting
