"""The progress of a pipeline: what Spark reports of each batch, added up and shown.

Pure but for the two views at the end, which write to a terminal or a file.

Always true:
- a batch is counted once, however often Spark reports it; a batch that is replayed after a restart
  counts again, because it was worked on again;
- rates are rows between two looks over the time between them, so that a pause shows as zero.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Protocol

from ister.base import printable_lines, rounded_size
from ister.base.errors import BadRequestError
from ister.spark.offsets import positions_from_json
from ister.telemetry import make_console

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

# A line for people who read a log: often enough to see trouble, seldom enough to keep.
LINE_INTERVAL_S = 10.0
# A rate over less than this jumps with every batch.
RATE_INTERVAL_S = 2.0


# What a meter tells of its last batch; the rest it has counted itself.
_LAST = ("batch", "batch_ms", "lag", "watermark_ms", "state_rows", "state_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What Spark says about one batch of one query.

    `lag` is how many messages were waiting behind the batch; `None` when a source does not tell.
    `late_rows` came after the watermark and were dropped. A look without anything to do is reported
    as well, under the number of the batch to come: then nothing was executed.
    """

    batch: int
    executed: bool = True
    rows: int = 0
    batch_ms: int = 0
    lag: int | None = None
    watermark_ms: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0


@dataclass(slots=True, kw_only=True)
class Meter:
    """The progress of one sink's query."""

    sink: str
    status: str = "starting"
    last: BatchReport | None = None
    rows: int = 0
    batches: int = 0
    late_rows: int = 0
    restarts: int = 0
    rows_per_s: float = 0.0
    # The newest batch of this run of the query that was counted.
    counted: int = -1
    _run: str = ""
    _looked_s: float = 0.0
    _looked_rows: int = 0

    def add(self, run: str, reports: Iterable[BatchReport]) -> list[BatchReport]:
        """Count what is new among the reports of a run; return it."""
        if run != self._run:
            self._run, self.counted = run, -1
        fresh = []
        newest: BatchReport | None = None
        for newest in reports:
            if newest.executed and newest.batch > self.counted:
                self.counted = newest.batch
                self.rows += newest.rows
                self.batches += 1
                self.late_rows += newest.late_rows
                self.last = newest
                fresh.append(newest)
        if newest is not None and not newest.executed and self.last is not None:
            self.last = replace(self.last, lag=newest.lag)
        if fresh:
            self.status = "running"
        return fresh

    def look(self, now_s: float) -> None:
        """Bring the rate up to date."""
        elapsed_s = now_s - self._looked_s
        if elapsed_s < RATE_INTERVAL_S:
            return
        self.rows_per_s = (self.rows - self._looked_rows) / elapsed_s if self._looked_s else 0.0
        self._looked_s, self._looked_rows = now_s, self.rows

    def report(self) -> dict[str, object]:
        """Return it as JSON values."""
        last = asdict(self.last) if self.last is not None else {}
        return {
            "sink": self.sink,
            "status": self.status,
            "rows": self.rows,
            "rows_per_s": round(self.rows_per_s, 1),
            "batches": self.batches,
            "restarts": self.restarts,
            "late_rows": self.late_rows,
            **{name: last[name] for name in _LAST if name in last},
        }


class PipelineProgress:
    """The progress of a pipeline: one meter for each sink."""

    def __init__(self, pipeline: str, sinks: Sequence[str]) -> None:
        self.pipeline = pipeline
        self.meters = {name: Meter(sink=name) for name in sinks}

    def add(self, sinks: Iterable[str]) -> None:
        """Add meters for more sinks."""
        for name in sinks:
            self.meters.setdefault(name, Meter(sink=name))

    def look(self, now_s: float) -> None:
        """Bring the rates up to date."""
        for meter in self.meters.values():
            meter.look(now_s)

    def report(self) -> dict[str, object]:
        """Return the progress of every sink as JSON values."""
        return {"sinks": [meter.report() for meter in self.meters.values()]}


def parse_report(progress: Mapping[str, object]) -> BatchReport:
    """Return what matters of a progress report of Spark's."""
    operators = _dicts(progress.get("stateOperators"))
    durations = progress.get("durationMs")
    event_time = progress.get("eventTime")
    lags = [lag_of(source) for source in _dicts(progress.get("sources"))]
    return BatchReport(
        batch=_int(progress.get("batchId")),
        executed=isinstance(durations, dict) and "addBatch" in durations,
        rows=_int(progress.get("numInputRows")),
        batch_ms=_int(durations.get("triggerExecution")) if isinstance(durations, dict) else 0,
        lag=sum(lag for lag in lags if lag is not None) if None not in lags else None,
        watermark_ms=_watermark(event_time.get("watermark") if isinstance(event_time, dict) else 0),
        state_rows=sum(_int(one.get("numRowsTotal")) for one in operators),
        state_bytes=sum(_int(one.get("memoryUsedBytes")) for one in operators),
        late_rows=sum(_int(one.get("numRowsDroppedByWatermark")) for one in operators),
    )


def lag_of(source: Mapping[str, object]) -> int | None:
    """Return how many messages of a source came after those that were read."""
    end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
    if latest is None:
        return None
    try:
        read = positions_from_json(end) if end is not None else {}
        heads = positions_from_json(latest)
    except BadRequestError:
        # Of a source that is not ours.
        return None
    lag = 0
    for stream, head in heads.items():
        place = read.get(stream)
        # A stream that is new is read from its first message, which is not told here.
        is_known = place is not None and place.number == head.number
        lag += max(0, head.offset - (place.offset if place is not None and is_known else 0))
    return lag


def line(meter: Meter) -> str:
    """Return what a sink does, on one line."""
    last = meter.last
    if last is None:
        return f"{meter.sink}: {meter.status}"
    words = [
        f"{meter.sink}: {meter.status}",
        f"batch {last.batch:,}",
        _count_text(meter.rows, "row"),
        f"{meter.rows_per_s:,.0f} rows/s",
        f"lag {last.lag:,}" if last.lag is not None else "",
        f"{last.batch_ms:,} ms",
        f"watermark {moment(last.watermark_ms)}" if last.watermark_ms is not None else "",
        f"state {_count_text(last.state_rows, 'row')}, {rounded_size(last.state_bytes)}"
        if last.state_rows
        else "",
        f"{meter.late_rows:,} late" if meter.late_rows else "",
        _count_text(meter.restarts, "restart") if meter.restarts else "",
    ]
    return ", ".join(word for word in words if word)


def _count_text(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def moment(at_ms: int) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


# Views


class ProgressView(Protocol):
    """Shows the progress of a pipeline to a person or a program."""

    def update(
        self, progress: PipelineProgress, fresh: Mapping[str, Sequence[BatchReport]]
    ) -> None:
        """Show the progress; `fresh` has the batches since the last call, by sink."""

    def say(self, text: str) -> None:
        """Show a message."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class LinesView:
    """A line for each sink, every `LINE_INTERVAL_S` seconds and at the end."""

    def __init__(self, out: IO[str] | None = None, interval_s: float = LINE_INTERVAL_S) -> None:
        self._out = out or sys.stderr
        self._interval_s = interval_s
        self._said_s = time.monotonic()
        self._progress: PipelineProgress | None = None
        self._said: dict[str, str] = {}

    def update(
        self, progress: PipelineProgress, fresh: Mapping[str, Sequence[BatchReport]]
    ) -> None:
        """Write the lines when they are due, and at the first batch of a sink."""
        self._progress = progress
        first = any(name not in self._said for name in fresh if fresh[name])
        now_s = time.monotonic()
        if first or now_s - self._said_s >= self._interval_s:
            self._said_s = now_s
            self._write()

    def say(self, text: str) -> None:
        """Write a message as a line of its own."""
        self._out.write(f"{printable_lines(text)}\n")
        self._out.flush()

    def close(self) -> None:
        """Write the last lines."""
        self._write()

    def _write(self) -> None:
        for name, meter in self._progress.meters.items() if self._progress else ():
            text = line(meter)
            # Nobody wants to read the same line all night.
            if meter.last is not None and self._said.get(name) != text:
                self._said[name] = text
                self.say(text)


class JsonView:
    """One JSON object for each batch, on stdout."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout

    def update(
        self, progress: PipelineProgress, fresh: Mapping[str, Sequence[BatchReport]]
    ) -> None:
        """Write an object for each new batch."""
        for name, reports in fresh.items():
            for report in reports:
                row = {"pipeline": progress.pipeline, "sink": name, **asdict(report)}
                self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    def say(self, text: str) -> None:
        """Write a message to stderr: stdout is for programs."""
        sys.stderr.write(f"{printable_lines(text)}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Do nothing: every batch is written."""


class LiveView:
    """A table on the terminal that changes in place."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def update(
        self, progress: PipelineProgress, fresh: Mapping[str, Sequence[BatchReport]]
    ) -> None:
        """Draw the table again."""
        if self._live is None:
            from rich.live import Live

            # Data goes to stdout and stays readable: rich puts it above the table.
            self._live = Live(console=make_console(stderr=True), auto_refresh=False)
            self._live.start()
        self._live.update(_table(progress), refresh=True)

    def say(self, text: str) -> None:
        """Show a message above the table."""
        if self._live is None:
            sys.stderr.write(f"{printable_lines(text)}\n")
        else:
            self._live.console.print(text)

    def close(self) -> None:
        """Leave the table as it is and give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _table(progress: PipelineProgress) -> "RenderableType":
    from rich.table import Table

    # Narrow: a terminal has 80 columns, and names of sinks are long.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("SINK", no_wrap=True)
    table.add_column("STATUS", no_wrap=True)
    for name in ("BATCH", "ROWS", "ROWS/S", "LAG", "MS", "STATE", "LATE"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("WATERMARK", no_wrap=True)
    for meter in progress.meters.values():
        last = meter.last or BatchReport(batch=0)
        table.add_row(
            meter.sink,
            meter.status,
            f"{last.batch:,}",
            f"{meter.rows:,}",
            f"{meter.rows_per_s:,.0f}",
            "-" if last.lag is None else f"{last.lag:,}",
            f"{last.batch_ms:,}",
            f"{last.state_rows:,} {rounded_size(last.state_bytes)}" if last.state_rows else "-",
            f"{meter.late_rows:,}",
            # Without the year.
            "-" if last.watermark_ms is None else moment(last.watermark_ms)[5:],
        )
    return table


def _offset(value: object) -> dict[str, object] | None:
    """Return an offset as Spark reports it: an object, or text that holds one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _watermark(value: object) -> int | None:
    """Return a watermark in milliseconds; Spark says 1970 for none."""
    if not isinstance(value, str):
        return None
    at_ms = int(datetime.fromisoformat(value).timestamp() * 1_000)
    return at_ms if at_ms > 0 else None


def _dicts(value: object) -> list[Mapping[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _int(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
