"""Runs a pipeline until it is done, stopped, or cannot go on.

States of a flow's query: starting → running → (waiting → starting)* → done, stopped or failed.
It waits after a failure that can pass, twice as long each time; a batch that succeeds forgets
earlier failures. One flow that cannot go on ends the pipeline, and the others end cleanly.

Always true:
- one process runs a pipeline of some name, and one uses a checkpoint;
- a stop lets batches under way end, up to a limit; what is cut off is done again by the next run;
- what Java has to say goes to the log file, never to the terminal.
"""

import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socketserver import BaseServer
from types import FrameType
from typing import IO, TYPE_CHECKING

from ister.base.errors import BadRequestError, PipelineRunningError
from ister.spark.pipelines.analysis.upgrade import (
    SHUFFLE_PARTITIONS,
    Fingerprint,
    check,
    fingerprint,
    from_json,
)
from ister.spark.pipelines.config.definition import (
    DEAD_LETTERS,
    Definition,
    RunOptions,
    hidden,
    reveal,
)
from ister.spark.pipelines.runtime import metrics, processes
from ister.spark.pipelines.runtime.building import Flow, build
from ister.spark.pipelines.runtime.failures import Failure, News, explained
from ister.spark.pipelines.runtime.progress import (
    BatchReport,
    Board,
    JsonView,
    LinesView,
    LiveView,
    View,
    parsed,
)
from ister.spark.pipelines.runtime.queries import start
from ister.spark.pipelines.runtime.sink_topics import make_topics
from ister.spark.tuning import cores_of, is_local_folder, session

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
LOG_BYTES_MAX = 10 * 2**20

FINGERPRINT_FILE = "pipeline.json"
LOCK_FILE = "pipeline.lock"


def run(definition: Definition, options: RunOptions) -> int:
    """Run a pipeline and return the exit code: 0 when it was stopped, or had done everything.

    Raises `PipelineRunningError` when it runs already, and `CheckpointMismatchError` when it was
    changed in a way that its checkpoint does not allow; both before Spark starts.
    """
    with ExitStack() as stack:
        claim = stack.enter_context(processes.claim(definition.name))
        if folder := local_checkpoint(definition, options):
            stack.enter_context(_locked(folder, definition.name))
        view = make_view(options)
        stack.callback(view.close)
        prepare(definition, options, view)
        log = log_path(definition.name)
        # From now on `list` and `stop` know of it: Spark takes ten seconds to start.
        claim.write(_running(definition, options, log=log))
        if (failure := make_topics(definition)) is not None:
            goes_on = failure.can_pass and options.restart
            later = "; the topics of its sinks are created once it answers" if goes_on else ""
            view.say(hidden(f"pipeline {definition.name}: {failure.text}{later}", definition))
            if not goes_on:
                return failure.exit_code
        with _diverted(log):
            spark = _session(definition, options)
        stack.callback(_stop_session, spark)
        # With --json, stdout is for programs.
        out = sys.stderr if options.as_json else None
        runner = Runner(spark, definition, options, view=view, log=log, out=out)
        stack.callback(runner.close)
        runner.publish = lambda progress: claim.write(
            _running(
                definition, options, log=log, metrics_port=runner.metrics_port, progress=progress
            )
        )
        with signals(runner.stop):
            return runner.run()


def prepare(definition: Definition, options: RunOptions, view: View) -> None:
    """Compare a pipeline with its checkpoint and write down its shape for the next time.

    Only of a checkpoint on this machine; elsewhere Spark alone complains. A sink that has not begun
    its first batch has no checkpoint that anything could be at odds with: a mistake in SQL may be
    mended after the run that found it.
    """
    folder = local_checkpoint(definition, options)
    if folder is None:
        return
    file = folder / FINGERPRINT_FILE
    defaults = {SHUFFLE_PARTITIONS: str(cores_of(options.master or "local[*]"))}
    saved = _saved(file)
    begun = [sink.name for sink in definition.sinks if has_begun(folder, sink.name)]
    if options.start is not None and begun:
        view.say(
            f"pipeline {definition.name}: warning: --from {options.start} is not followed by "
            f"{', '.join(begun)}: it goes on from the checkpoint in {folder}; to start over, give "
            "another place with --checkpoint"
        )
    shapes = saved.shapes if saved is not None else {}
    shapes = {name: shape for name, shape in shapes.items() if has_begun(folder, name)}
    if saved is None or not shapes:
        kept = fingerprint(definition, defaults)
    else:
        kept, remarks = check(definition, replace(saved, shapes=shapes), defaults)
        for remark in remarks:
            view.say(f"pipeline {definition.name}: {remark}")
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(kept.to_json(), indent=1), encoding="utf-8")
    fresh.replace(file)


def _saved(file: Path) -> Fingerprint | None:
    try:
        return from_json(json.loads(file.read_text("utf-8")))
    except (FileNotFoundError, ValueError):
        # Not there yet, or somebody has written something else into it: nothing to compare with.
        return None


def has_begun(folder: Path, name: str) -> bool:
    """Whether Spark has planned a batch of a sink: from then on its checkpoint binds."""
    offsets = folder / name / "offsets"
    return offsets.is_dir() and any(path.name.isdecimal() for path in offsets.iterdir())


@dataclass(slots=True)
class _Track:
    """One flow and the query that runs it now."""

    flow: Flow
    query: "StreamingQuery | None" = None
    failures: int = 0
    retry_s: float | None = None
    done: bool = False


class Runner:
    """Starts the queries of a pipeline, looks after them, and ends them."""

    def __init__(
        self,
        spark: "SparkSession",
        definition: Definition,
        options: RunOptions,
        *,
        view: View,
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
        self._tracks: list[_Track] = []
        self._exporter: metrics.Exporter | None = None
        # Batches that were counted and not shown yet, by sink.
        self._fresh: dict[str, list[BatchReport]] = {}
        self._written_s = 0.0
        self._news = News()
        self.board = Board(definition.name, [sink.name for sink in definition.sinks])
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
            self._exporter = _export(self.board, self._options.metrics_port)
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
                failure = self._noted(error)
                count += 1
                if not self._may_retry(failure, count):
                    return failure
                self._wait(failure, count)
                continue
            self._tracks = [_Track(flow) for flow in in_order(flows, self._definition)]
            self.board.add(flow.name for flow in flows)
            return None
        return None

    def _watch(self) -> Failure | None:
        """Look after the queries; return what the pipeline cannot go on with."""
        while not self._stopping.is_set():
            is_starting = False
            for track in self._tracks:
                # One after the other: the processes of several would keep each other from
                # answering within the ten seconds that Spark gives them.
                if not (is_starting and track.query is None):
                    failure = self._step(track)
                    if failure is not None:
                        return failure
                is_starting = is_starting or _is_starting(track)
            self._look()
            if all(track.done for track in self._tracks):
                return None
            self._stopping.wait(LOOK_S)
        return None

    def _step(self, track: _Track) -> Failure | None:
        """Do what is to be done about one flow now."""
        meter = self.board.meters[track.flow.name]
        if track.done:
            return None
        try:
            if track.query is None:
                if track.retry_s is None or time.monotonic() >= track.retry_s:
                    track.query = start(track.flow, self._definition, self._out)
                    meter.status = "running"
                return None
            if track.query.isActive:
                return None
            error = track.query.exception()
            if error is None:
                self._read(track)
                track.done, meter.status = True, "done"
                return None
        except Exception as raised:  # noqa: BLE001 (as above)
            error = raised  # type: ignore[assignment]
        assert error is not None
        return self._failed(track, error)

    def _failed(self, track: _Track, error: BaseException) -> Failure | None:
        """Have a flow tried again later, or return why that would not help."""
        meter = self.board.meters[track.flow.name]
        failure = self._noted(error)
        with suppress(Exception):  # Java may be gone.
            self._read(track)
        track.query = None
        track.failures += 1
        if self._stopping.is_set():
            # Signals of a terminal reach Spark's workers too. The next run does the batch again.
            track.done = True
            return None
        if not self._may_retry(failure, track.failures):
            meter.status = "failed"
            origin = track.flow.sink.origin
            place = f"{origin}: " if origin.line else ""
            text = f"{place}sink `{meter.sink}`: {failure.text}"
            return Failure(text, can_pass=False, exit_code=failure.exit_code)
        wait_s = backoff_s(track.failures)
        track.retry_s = time.monotonic() + wait_s
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

    def _look(self) -> None:
        """Read what is new and show it."""
        for track in self._tracks:
            if not track.done:
                self._read(track)
        now_s = time.monotonic()
        self.board.look(now_s)
        fresh, self._fresh = self._fresh, {}
        self._view.update(self.board, fresh)
        if now_s - self._written_s >= WRITE_S:
            self._written_s = now_s
            # A full disk is no reason to end a pipeline that may not even write to it.
            with suppress(OSError):
                self.publish(self.board.report())

    def _read(self, track: _Track) -> None:
        """Count the batches that a query has done since the last time."""
        if track.query is None:
            return
        meter = self.board.meters[track.flow.name]
        found = meter.add(str(track.query.runId), recent_reports(track.query, meter.counted))
        if found:
            track.failures = 0
            self._fresh.setdefault(meter.sink, []).extend(found)

    def _end(self) -> None:
        """End the queries, each after the batch that it is at."""
        active = [track for track in self._tracks if track.query is not None and not track.done]
        deadline_s = time.monotonic() + STOP_S
        waiting = {track.flow.name: _batch_under_way(track) for track in active}
        while time.monotonic() < deadline_s:
            if not any(_is_busy(track, waiting[track.flow.name]) for track in active):
                break
            time.sleep(LOOK_S / 5)
        for track in active:
            with suppress(Exception):  # Java may be gone, or be on its way out by itself.
                assert track.query is not None
                track.query.stop()
                self._read(track)
            meter = self.board.meters[track.flow.name]
            if meter.status == "running":
                meter.status = "stopped"
            track.done = True
        with suppress(Exception):
            self._look()

    def _noted(self, error: BaseException) -> Failure:
        """Write all of an error to the log, and return the short of it."""
        if self.log is not None:
            with suppress(OSError), self.log.open("a", encoding="utf-8") as log:
                log.write(hidden("".join(traceback.format_exception(error)), self._definition))
        failure = explained(error)
        return replace(failure, text=hidden(failure.text, self._definition))


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
        report = parsed(json.loads(found[slot].json()))
        reports.append(report)
        if report.executed and report.batch <= counted:
            break
    return reports[::-1]


def _is_starting(track: _Track) -> bool:
    """Whether the processes of a query's sources are still being started."""
    with suppress(Exception):
        if track.query is not None and track.query.isActive:
            return str(track.query.status["message"]).startswith("Initializing")
    return False


def _batch_under_way(track: _Track) -> int:
    """Return the last batch that a query has done, -1 for none."""
    with suppress(Exception):
        assert track.query is not None
        last = track.query._jsq.lastProgress()  # noqa: SLF001 (one call instead of a hundred)
        return int(last.batchId()) if last is not None else -1
    return -1


def _is_busy(track: _Track, before: int) -> bool:
    """Whether a query is still at the batch that it was at when the stop was asked for."""
    with suppress(Exception):
        assert track.query is not None
        status = track.query.status
        at_work = bool(status["isTriggerActive"]) and bool(status["isDataAvailable"])
        return track.query.isActive and at_work and _batch_under_way(track) == before
    return False


# Around it


def _export(board: Board, port: int) -> metrics.Exporter:
    try:
        return metrics.export(board, port)
    except OSError as error:
        raise BadRequestError(f"--metrics-port {port}: {error.strerror}") from error


def make_view(options: RunOptions) -> View:
    """Return what shows the progress: JSON, a live table on a terminal, or lines."""
    if options.as_json:
        return JsonView()
    return LiveView() if sys.stderr.isatty() else LinesView()


def log_path(name: str) -> Path:
    """Return the file for what Java and Spark have to say; an old one is put aside when large."""
    path = processes.home() / f"{processes.file_name(name)}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".log.old"))
    return path


def local_checkpoint(definition: Definition, options: RunOptions) -> Path | None:
    """Return the folder of the checkpoint, if it is one of this machine; it is there then."""
    if not is_local_folder(definition.checkpoint, options.master or "local[*]"):
        return None
    folder = Path(re.sub(r"^file:(//)?", "", definition.checkpoint))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for SIGTERM and SIGINT; a second one ends the process at once."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        stop()

    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    lock = processes.lock_file(folder / LOCK_FILE)
    if lock is None:
        raise PipelineRunningError(name, 0)
    with lock:
        yield


@contextmanager
def _diverted(log: Path) -> Iterator[None]:
    """Have whatever starts meanwhile, which is Java, write to the log instead of the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, own in zip((1, 2), kept, strict=True):
            os.dup2(own, number)
            os.close(own)


def _session(definition: Definition, options: RunOptions) -> "SparkSession":
    _quiet_loggers()
    settings = {name: reveal(value) for name, value in definition.settings.items()}
    master = options.master or "local[*]"
    spark = session(
        definition.name, master=master, settings=settings, checkpoint=definition.checkpoint
    )
    # Spark would find it by itself, with a Python process more, and, where that is too slow to
    # answer, the words that there is no such source.
    from ister.spark.data_source import IsterSource

    spark.dataSource.register(IsterSource)
    silence(spark.sparkContext._accumulatorServer)  # noqa: SLF001 (nothing else has it)
    return spark


def silence(server: BaseServer) -> None:
    """Keep a server of PySpark from printing a traceback when Java ends first, as by Ctrl-C."""
    server.handle_error = lambda *_: None  # type: ignore[method-assign]


def _quiet_loggers() -> None:
    """Keep Spark's own words for an error from the terminal: the pipeline says it in fewer.

    PySpark logs mistakes in SQL; Py4J logs what a batch raises, with the stack traces of Python and
    Java, before the query reports it. All of it is in the pipeline's log.
    """
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j.clientserver"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _stop_session(spark: "SparkSession") -> None:
    with suppress(Exception):  # Java may be gone already: nothing is left to stop then.
        spark.stop()


def _running(
    definition: Definition,
    options: RunOptions,
    *,
    log: Path,
    metrics_port: int | None = None,
    progress: Mapping[str, object] | None = None,
) -> processes.Running:
    pid = os.getpid()
    return processes.Running(
        name=definition.name,
        pid=pid,
        started_ms=processes.process_started_ms(pid) or 0,
        file=definition.file,
        master=options.master or "local[*]",
        checkpoint=definition.checkpoint,
        metrics_port=metrics_port,
        log=str(log),
        progress=progress if progress is not None else {"sinks": []},
    )
