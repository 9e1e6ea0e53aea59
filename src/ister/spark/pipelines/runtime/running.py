"""Runs a pipeline in this process until it is done, stopped, or cannot go on.

Always true:
- one process runs a pipeline of some name;
- what Java has to say goes to the log file, never to the terminal.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from types import FrameType
from typing import TYPE_CHECKING

from ister.spark.pipelines import processes
from ister.spark.pipelines.config import Definition, RunOptions, hide_secrets, reveal
from ister.spark.pipelines.runtime.checkpoint import local_checkpoint, lock_checkpoint, prepare
from ister.spark.pipelines.runtime.progress import JsonView, LinesView, LiveView, ProgressView
from ister.spark.pipelines.runtime.runner import Runner
from ister.spark.pipelines.runtime.sink_topics import make_topics
from ister.spark.tuning import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_BYTES_MAX = 10 * 2**20


def run(definition: Definition, options: RunOptions) -> int:
    """Run a pipeline and return the exit code: 0 when it was stopped, or had done everything.

    Raises `PipelineRunningError` when it runs already, and `CheckpointMismatchError` when it was
    changed in a way that its checkpoint does not allow; both before Spark starts.
    """
    with ExitStack() as stack:
        claim = stack.enter_context(processes.claim(definition.name))
        if folder := local_checkpoint(definition, options):
            stack.enter_context(lock_checkpoint(folder, definition.name))
        view = make_view(options)
        stack.callback(view.close)
        prepare(definition, options, view)
        log = log_path(definition.name)
        # From now on `list` and `stop` know of it: Spark takes ten seconds to start.
        claim.write(_describe_running(definition, options, log=log))
        if (failure := make_topics(definition)) is not None:
            goes_on = failure.can_pass and options.restart
            later = "; the topics of its sinks are created once it answers" if goes_on else ""
            view.say(hide_secrets(f"pipeline {definition.name}: {failure.text}{later}", definition))
            if not goes_on:
                return failure.exit_code
        with _divert_output(log):
            spark = _session(definition, options)
        stack.callback(_stop_session, spark)
        # With --json, stdout is for programs.
        out = sys.stderr if options.as_json else None
        runner = Runner(spark, definition, options, view=view, log=log, out=out)
        stack.callback(runner.close)
        runner.publish = lambda progress: claim.write(
            _describe_running(
                definition, options, log=log, metrics_port=runner.metrics_port, progress=progress
            )
        )
        with signals(runner.stop):
            return runner.run()


def make_view(options: RunOptions) -> ProgressView:
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
def _divert_output(log: Path) -> Iterator[None]:
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


def _describe_running(
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
