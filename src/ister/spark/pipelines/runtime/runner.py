"""Starts the queries of a pipeline, restarts those that fail, and ends them.

States of a flow's query: starting → running → (waiting → starting)* → done, stopped or failed.
It waits after a failure that can pass, twice as long each time; a batch that succeeds forgets
earlier failures. One flow that cannot go on ends the pipeline, and the others end cleanly.

Always true: a stop lets batches under way end, up to a limit; what is cut off is done again by the
next run.
"""

import json
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ister.base.errors import BadRequestError
from ister.spark.pipelines.config import (
    DEAD_LETTERS,
    Definition,
    RunOptions,
    hide_secrets,
)
from ister.spark.pipelines.runtime import metrics
from ister.spark.pipelines.runtime.building import Flow, build
from ister.spark.pipelines.runtime.failures import Failure, RecentFailures, explain
from ister.spark.pipelines.runtime.progress import (
    BatchReport,
    PipelineProgress,
    ProgressView,
    parse_report,
)
from ister.spark.pipelines.runtime.queries import start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# How often queries are looked at: their end, their progress, a wish to stop.
LOOK_S = 0.25
# How often the state file is written; `ister pipeline status` shows what is this old.
WRITE_S = 1.0
# A batch that takes longer than this is cut off by a stop; the next run does it again.
STOP_S = 30.0
# The first wait after a failure, doubled up to the last: a broker's restart takes a second, one
# that is away for an hour is asked sixty times.
BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
# Failures in a row without a single batch: more than an hour of waiting.
RESTARTS_MAX = 100
# Spark keeps the last 100 reports of a query; at more batches a second than 400, some are missed.
REPORTS_MAX = 100


@dataclass(slots=True)
class _FlowRun:
    """One flow and the query that runs it now."""

    flow: Flow
    query: "StreamingQuery | None" = None
    failures: int = 0
    retry_s: float | None = None
    done: bool = False


class Runner:
    """Starts the queries of a pipeline, restarts those that fail, and ends them."""

    def __init__(
        self,
        spark: "SparkSession",
        definition: Definition,
        options: RunOptions,
        *,
        view: ProgressView,
        log: Path | None = None,
        out: IO[str] | None = None,
    ) -> None:
        self._spark = spark
        self._definition = definition
        self._options = options
        self._view = view
        self.log = log
        self._out = out
        self._stopping = threading.Event()
        self._runs: list[_FlowRun] = []
        self._exporter: metrics.Exporter | None = None
        # Batches that were counted and not shown yet, by sink.
        self._fresh: dict[str, list[BatchReport]] = {}
        self._written_s = 0.0
        self._news = RecentFailures()
        self.progress = PipelineProgress(definition.name, [sink.name for sink in definition.sinks])
        # Told what to show others of this pipeline, every `WRITE_S`.
        self.publish: Callable[[Mapping[str, object]], None] = lambda _progress: None

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics, once there is one."""
        return self._exporter.port if self._exporter is not None else None

    def stop(self) -> None:
        """Ask it to end. From any thread, or a signal's handler."""
        self._stopping.set()

    def run(self) -> int:
        """Run until everything is done, or somebody stops it; return the exit code."""
        # Makes the session that of this thread: where there is none, Spark does not find sources
        # in Python. Nothing else in the API does.
        self._spark.createDataFrame([], "nothing int")
        if self._options.metrics_port is not None:
            self._exporter = _export(self.progress, self._options.metrics_port)
        failure = self._build() or self._watch()
        self._end()
        if failure is None:
            return 0
        self._view.say(f"pipeline {self._definition.name}: {failure.text}")
        if self.log is not None:
            self._view.say(f"pipeline {self._definition.name}: all of it is in {self.log}")
        return failure.exit_code

    def close(self) -> None:
        """Free the port of the metrics."""
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None

    def _build(self) -> Failure | None:
        """Make the flows; a broker that has to be asked for a schema may not be there yet."""
        count = 0
        while not self._stopping.is_set():
            try:
                flows = build(self._spark, self._definition)
            except Exception as error:  # noqa: BLE001 (Spark and the user's functions raise anything)
                failure = self._log_and_explain(error)
                count += 1
                if not self._may_retry(failure, count):
                    return failure
                self._wait(failure, count)
                continue
            self._runs = [_FlowRun(flow) for flow in in_order(flows, self._definition)]
            self.progress.add(flow.name for flow in flows)
            return None
        return None

    def _watch(self) -> Failure | None:
        """Look after the queries; return what the pipeline cannot go on with."""
        while not self._stopping.is_set():
            is_starting = False
            for run in self._runs:
                # One after the other: the processes of several would keep each other from
                # answering within the ten seconds that Spark gives them.
                if not (is_starting and run.query is None):
                    failure = self._advance(run)
                    if failure is not None:
                        return failure
                is_starting = is_starting or _is_starting(run)
            self._update()
            if all(run.done for run in self._runs):
                return None
            self._stopping.wait(LOOK_S)
        return None

    def _advance(self, run: _FlowRun) -> Failure | None:
        """Do what is to be done about one flow now."""
        meter = self.progress.meters[run.flow.name]
        if run.done:
            return None
        try:
            if run.query is None:
                if run.retry_s is None or time.monotonic() >= run.retry_s:
                    run.query = start_query(run.flow, self._definition, self._out)
                    meter.status = "running"
                return None
            if run.query.isActive:
                return None
            error = run.query.exception()
            if error is None:
                self._read(run)
                run.done, meter.status = True, "done"
                return None
        except Exception as raised:  # noqa: BLE001 (as above)
            error = raised  # type: ignore[assignment]
        assert error is not None
        return self._on_failure(run, error)

    def _on_failure(self, run: _FlowRun, error: BaseException) -> Failure | None:
        """Have a flow tried again later, or return why that would not help."""
        meter = self.progress.meters[run.flow.name]
        failure = self._log_and_explain(error)
        with suppress(Exception):  # Java may be gone.
            self._read(run)
        run.query = None
        run.failures += 1
        if self._stopping.is_set():
            # Signals of a terminal reach Spark's workers too. The next run does the batch again.
            run.done = True
            return None
        if not self._may_retry(failure, run.failures):
            meter.status = "failed"
            origin = run.flow.sink.origin
            place = f"{origin}: " if origin.line else ""
            text = f"{place}sink `{meter.sink}`: {failure.text}"
            return Failure(text, can_pass=False, exit_code=failure.exit_code)
        wait_s = backoff_s(run.failures)
        run.retry_s = time.monotonic() + wait_s
        meter.restarts += 1
        meter.status = "waiting"
        if self._news.is_new(meter.sink, failure.text, time.monotonic()):
            self._view.say(f"{meter.sink}: {failure.text}; again in {wait_s:.0f} s")
        return None

    def _may_retry(self, failure: Failure, count: int) -> bool:
        return failure.can_pass and self._options.restart and count <= RESTARTS_MAX

    def _wait(self, failure: Failure, count: int) -> None:
        wait_s = backoff_s(count)
        name = self._definition.name
        self._view.say(f"pipeline {name}: {failure.text}; again in {wait_s:.0f} s")
        self._stopping.wait(wait_s)

    def _update(self) -> None:
        """Read what is new and show it."""
        for run in self._runs:
            if not run.done:
                self._read(run)
        now_s = time.monotonic()
        self.progress.look(now_s)
        fresh, self._fresh = self._fresh, {}
        self._view.update(self.progress, fresh)
        if now_s - self._written_s >= WRITE_S:
            self._written_s = now_s
            # A full disk is no reason to end a pipeline that may not even write to it.
            with suppress(OSError):
                self.publish(self.progress.report())

    def _read(self, run: _FlowRun) -> None:
        """Count the batches that a query has done since the last time."""
        if run.query is None:
            return
        meter = self.progress.meters[run.flow.name]
        found = meter.add(str(run.query.runId), recent_reports(run.query, meter.counted))
        if found:
            run.failures = 0
            self._fresh.setdefault(meter.sink, []).extend(found)

    def _end(self) -> None:
        """End the queries, each after the batch that it is at."""
        active = [run for run in self._runs if run.query is not None and not run.done]
        deadline_s = time.monotonic() + STOP_S
        waiting = {run.flow.name: _batch_under_way(run) for run in active}
        while time.monotonic() < deadline_s:
            if not any(_is_busy(run, waiting[run.flow.name]) for run in active):
                break
            time.sleep(LOOK_S / 5)
        for run in active:
            with suppress(Exception):  # Java may be gone, or be on its way out by itself.
                assert run.query is not None
                run.query.stop()
                self._read(run)
            meter = self.progress.meters[run.flow.name]
            if meter.status == "running":
                meter.status = "stopped"
            run.done = True
        with suppress(Exception):
            self._update()

    def _log_and_explain(self, error: BaseException) -> Failure:
        """Write all of an error to the log, and return the short of it."""
        if self.log is not None:
            with suppress(OSError), self.log.open("a", encoding="utf-8") as log:
                log.write(
                    hide_secrets("".join(traceback.format_exception(error)), self._definition)
                )
        failure = explain(error)
        return replace(failure, text=hide_secrets(failure.text, self._definition))


def in_order(flows: Sequence[Flow], definition: Definition) -> list[Flow]:
    """Return flows in the order to start them in.

    Each finds out by itself where a source ends that is read from there on. So the dead letters
    begin before the sinks: else what cannot be decoded in between would be in neither.
    """
    begins_at_end = any(source.start == "latest" for source in definition.sources)
    letters = f"{DEAD_LETTERS}."
    return sorted(flows, key=lambda flow: begins_at_end and not flow.name.startswith(letters))


def backoff_s(count: int) -> float:
    """Return how long to wait after the failure number `count` in a row, which starts at 1."""
    return min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(count - 1, 16))


def recent_reports(query: "StreamingQuery", counted: int) -> list[BatchReport]:
    """Return what Spark reported since batch `counted`, oldest first.

    Of PySpark's own properties, each report is a hundred calls into Java; its JSON is one.
    """
    reports: list[BatchReport] = []
    found = query._jsq.recentProgress()  # noqa: SLF001 (see above)
    for slot in range(len(found) - 1, max(-1, len(found) - 1 - REPORTS_MAX), -1):
        report = parse_report(json.loads(found[slot].json()))
        reports.append(report)
        if report.executed and report.batch <= counted:
            break
    return reports[::-1]


def _is_starting(run: _FlowRun) -> bool:
    """Whether the processes of a query's sources are still being started."""
    with suppress(Exception):
        if run.query is not None and run.query.isActive:
            return str(run.query.status["message"]).startswith("Initializing")
    return False


def _batch_under_way(run: _FlowRun) -> int:
    """Return the last batch that a query has done, -1 for none."""
    with suppress(Exception):
        assert run.query is not None
        last = run.query._jsq.lastProgress()  # noqa: SLF001 (one call instead of a hundred)
        return int(last.batchId()) if last is not None else -1
    return -1


def _is_busy(run: _FlowRun, before: int) -> bool:
    """Whether a query is still at the batch that it was at when the stop was asked for."""
    with suppress(Exception):
        assert run.query is not None
        status = run.query.status
        at_work = bool(status["isTriggerActive"]) and bool(status["isDataAvailable"])
        return run.query.isActive and at_work and _batch_under_way(run) == before
    return False


def _export(progress: PipelineProgress, port: int) -> metrics.Exporter:
    try:
        return metrics.export(progress, port)
    except OSError as error:
        raise BadRequestError(f"--metrics-port {port}: {error.strerror}") from error
