"""What the answers to all requests have in common."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from .dataset_root import Shelf
from .digests import Digests
from .limits import ServiceLimits
from .summary_cache import Looks
from .uploads import Uploads


@dataclass(frozen=True)
class Hosting:
    """Datasets, and what is known of them.

    Args:
        shelf: where they lie.
        digests: of their files.
        uploads: that are not complete.
        limits: of what is taken.
        looks: what the page shows of datasets.
    """

    shelf: Shelf
    digests: Digests
    uploads: Uploads
    limits: ServiceLimits
    looks: Looks

    @classmethod
    def at(cls, shelf: Shelf, limits: ServiceLimits) -> Hosting:
        """That of a shelf."""
        digests = Digests(shelf)
        return cls(shelf, digests, Uploads(shelf, digests, limits), limits, Looks())

    @staticmethod
    def of(request: Request) -> Hosting:
        """That of the application which answers a request."""
        hosting: Hosting = request.app.state.hosting
        return hosting
