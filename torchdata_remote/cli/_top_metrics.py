"""Serve the statistics of a training as metrics of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..core.stats import stages
from ..inspection.recorded_stats import RecordedStats
from ..inspection.training_stats import ProcessStats

_PREFIX = "torchdata_remote"
_PROCESS = ("rank", "worker", "host", "pid")
_COUNTERS = {
    "items": "Items that a stage produced: URLs, objects, samples, decoded values.",
    "num_bytes": "Bytes that a stage received.",
    "wait_s": "Seconds that the consumer waited for a stage.",
    "busy_s": "Seconds of work, of all threads together.",
    "requests": "Requests that were sent.",
    "retries": "Requests that failed and were sent again.",
}
_NAMES = {"num_bytes": "received_bytes", "wait_s": "wait_seconds", "busy_s": "busy_seconds"}


class TrainingCollector(Collector):
    """Reads the recordings when it is scraped. A process that has ended has no series.

    Args:
        recorded: the statistics.
    """

    def __init__(self, recorded: RecordedStats) -> None:
        self._recorded = recorded

    def collect(self) -> Iterator[Metric]:
        """Yield counters of each process and stage, and one gauge that says which processes run."""
        processes = [one for one in self._recorded.now().processes if one.state in ("running", "stalled")]
        running = GaugeMetricFamily(f"{_PREFIX}_running", "1 if a process records, 0 if it stalls.", labels=_PROCESS)
        age = GaugeMetricFamily(f"{_PREFIX}_line_age_seconds", "Age of the latest line of a process.", labels=_PROCESS)
        samples = CounterMetricFamily(f"{_PREFIX}_samples", "Samples that were read.", labels=_PROCESS)
        elapsed = CounterMetricFamily(f"{_PREFIX}_elapsed_seconds", "Seconds since a process began.", labels=_PROCESS)
        for one in processes:
            labels = _labels(one)
            running.add_metric(labels, float(one.state == "running"))
            age.add_metric(labels, one.age_s)
            samples.add_metric(labels, one.total.samples)
            elapsed.add_metric(labels, one.total.elapsed_s)
        yield from (running, age, samples, elapsed)
        for field, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}_{_NAMES.get(field, field)}", text, labels=(*_PROCESS, "stage"))
            for one in processes:
                for stage in stages:
                    counter.add_metric([*_labels(one), stage.name], getattr(getattr(one.total, stage.name), field))
            yield counter


def serve_metrics(recorded: RecordedStats, host: str, port: int) -> int:
    """Serve ``/metrics`` in a thread until the process ends.

    Returns:
        int: the port, which the system chooses if ``port`` is 0.

    Raises:
        OSError: if the address cannot be used.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TrainingCollector(recorded))
    server, _ = start_http_server(port, addr=host, registry=registry)
    return server.server_port


def _labels(one: ProcessStats) -> list[str]:
    return ["" if value is None else str(value) for value in (one.rank, one.worker, one.host, one.pid)]
