"""What Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .dataset_root import DatasetRoot


class Metrics:
    """Counts of one application.

    Args:
        shelf: whose free space is told.
    """

    def __init__(self, shelf: DatasetRoot) -> None:
        self._registry = registry = CollectorRegistry()
        name = "torchdata_remote_service"
        labels = ("method", "route", "status")
        self._requests = Counter(f"{name}_requests", "Requests that were answered.", labels, registry=registry)
        self._seconds = Histogram(
            f"{name}_request_seconds", "From a request's head to the end of its answer.", labels[:2], registry=registry
        )
        self._received = Counter(f"{name}_received_bytes", "Bytes of bodies that came.", registry=registry)
        self._sent = Counter(f"{name}_sent_bytes", "Bytes of bodies that were sent.", registry=registry)
        self.in_flight = Gauge(f"{name}_requests_in_flight", "Requests that are not answered yet.", registry=registry)
        if shelf.is_local:
            free = Gauge(f"{name}_free_bytes", "Left on the disk of the datasets.", registry=registry)
            free.set_function(lambda: float(shelf.free_bytes() or 0))

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count a request that has ended; status 499 is one whose client went away."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)
        self._received.inc(received)
        self._sent.inc(sent)

    def text(self) -> bytes:
        """In Prometheus' format, version 0.0.4."""
        return generate_latest(self._registry)
