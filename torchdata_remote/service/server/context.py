"""State that all request handlers share."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from ...core.threads import NamedLocks
from .blocking import Lanes
from .datasets.dataset_root import DatasetRoot
from .datasets.digests import Digests
from .datasets.summary_cache import SummaryCache
from .http.sendable_files import SendableFiles
from .limits import ServiceLimits
from .stopping import Stopping
from .uploads.uploads import Uploads


@dataclass(frozen=True)
class ServiceContext:
    """The datasets of an application, with caches and limits.

    Args:
        root: the datasets.
        digests: SHA-256 of their files.
        uploads: incomplete multipart uploads.
        limits: of requests.
        summaries: cached summaries and contact sheets of datasets.
        lanes: of the threads of slow work.
        stopping: set when the service stops.
        in_turn: locks of work on a dataset that many requests share, such as its summary.
        sendable: open files that the HTTP server sends.
    """

    root: DatasetRoot
    digests: Digests
    uploads: Uploads
    limits: ServiceLimits
    summaries: SummaryCache
    lanes: Lanes
    stopping: Stopping
    in_turn: NamedLocks
    sendable: SendableFiles

    @classmethod
    def at(cls, root: DatasetRoot, limits: ServiceLimits) -> ServiceContext:
        """Create the context of a root."""
        stopping, lanes = Stopping(), Lanes()
        digests = Digests(root, stopping)
        uploads = Uploads(root, digests, limits, lanes)
        return cls(root, digests, uploads, limits, SummaryCache(), lanes, stopping, NamedLocks(), SendableFiles())

    @staticmethod
    def of(request: Request) -> ServiceContext:
        """Return the context of the application that handles a request."""
        context: ServiceContext = request.app.state.context
        return context
