"""State that all request handlers share."""

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
    """The datasets of an application, with caches and limits.

    Args:
        root: the datasets.
        digests: SHA-256 of their files.
        uploads: incomplete multipart uploads.
        limits: of requests.
        summaries: cached summaries and contact sheets of datasets.
    """

    root: DatasetRoot
    digests: Digests
    uploads: Uploads
    limits: ServiceLimits
    summaries: SummaryCache

    @classmethod
    def at(cls, root: DatasetRoot, limits: ServiceLimits) -> ServiceContext:
        """Create the context of a root."""
        digests = Digests(root)
        return cls(root, digests, Uploads(root, digests, limits), limits, SummaryCache())

    @staticmethod
    def of(request: Request) -> ServiceContext:
        """Return the context of the application that handles a request."""
        context: ServiceContext = request.app.state.context
        return context
