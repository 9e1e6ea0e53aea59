"""The progress of a pipeline as Prometheus metrics, on a port of its own.

Metrics are computed from the progress when they are scraped; nothing is kept here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ister.spark.pipelines.runtime.progress import Meter, PipelineProgress

HOST = "127.0.0.1"
LABELS = ("pipeline", "sink")

# Name → what it is. Those that end in `_total` are counters. docs/pipelines.md has them all.
METRICS = {
    "ister_pipeline_up": "1 while the query of the sink runs, 0 while it waits to be restarted",
    "ister_pipeline_rows_total": "rows read by the query of the sink",
    "ister_pipeline_batches_total": "batches done",
    "ister_pipeline_late_rows_total": "rows that came after the watermark and were dropped",
    "ister_pipeline_restarts_total": "restarts after failures",
    "ister_pipeline_rows_per_second": "rows read in the last seconds, per second",
    "ister_pipeline_batch_seconds": "time the last batch took",
    "ister_pipeline_lag_messages": "messages that wait behind the last batch",
    "ister_pipeline_watermark_timestamp_seconds": "the watermark, in seconds since 1970",
    "ister_pipeline_state_rows": "rows that operators with state keep",
    "ister_pipeline_state_bytes": "memory of the state",
}


@dataclass(frozen=True, slots=True)
class Exporter:
    """Metrics on a port, until it is closed."""

    port: int
    _server: object

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()  # type: ignore[attr-defined]
        self._server.server_close()  # type: ignore[attr-defined]


def export(progress: PipelineProgress, port: int, host: str = HOST) -> Exporter:
    """Answer on `port` with the metrics of a progress; 0 takes any free one."""
    registry = CollectorRegistry()
    registry.register(ProgressCollector(progress))
    server, _ = start_http_server(port, addr=host, registry=registry)
    return Exporter(server.server_port, server)


class ProgressCollector(Collector):
    """Computes the metrics of a pipeline when Prometheus asks for them."""

    def __init__(self, progress: PipelineProgress) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of every sink."""
        for name, text in METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, text, labels=LABELS)
            for meter in list(self._progress.meters.values()):
                value = _value(name, meter)
                if value is not None:
                    family.add_metric([self._progress.pipeline, meter.sink], value)
            yield family


def _value(name: str, meter: Meter) -> float | None:
    """Return a metric of a sink; `None` when there is nothing to tell yet."""
    last = meter.last
    match name.removeprefix("ister_pipeline_"):
        case "up":
            return float(meter.status == "running")
        case "rows_total":
            return meter.rows
        case "batches_total":
            return meter.batches
        case "late_rows_total":
            return meter.late_rows
        case "restarts_total":
            return meter.restarts
        case "rows_per_second":
            return meter.rows_per_s
    if last is None:
        return None
    match name.removeprefix("ister_pipeline_"):
        case "batch_seconds":
            return last.batch_ms / 1_000
        case "lag_messages":
            return last.lag
        case "watermark_timestamp_seconds":
            return None if last.watermark_ms is None else last.watermark_ms / 1_000
        case "state_rows":
            return last.state_rows
        case "state_bytes":
            return last.state_bytes
    raise AssertionError(name)
