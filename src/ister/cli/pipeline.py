"""`ister pipeline`: run pipelines on Spark, check them, and see those that run here."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ister.base import rounded_size, rounded_span
from ister.base.errors import BadRequestError, PipelineNotRunningError
from ister.cli.console.terminal import (
    JsonOption,
    TimeoutOption,
    counted,
    parse_pairs,
    say,
    write,
    write_json,
    write_table,
)
from ister.cli.console.values import PLACE_HELP, parse_place

if TYPE_CHECKING:
    from ister.spark.pipelines import CheckedPipeline, Running

pipeline = typer.Typer(no_args_is_help=True, help="Run pipelines on Spark, check them, stop them.")

# Of `validate` alone: a program tells a pipeline with mistakes from a command that went wrong.
EXIT_MISTAKES = 2
STOP_TIMEOUT_S = 60.0

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE|MODULE",
        help="A .yaml or .toml file, a .py file (or file.py:function), or module:function.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Value of a variable ${NAME}. Repeatable."),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")]


@pipeline.command("run")
def run(
    target: TargetArgument,
    variables: SetOption = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The cluster, as spark://host:7077.  [default: local[*]]"),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="Start there, in a run without checkpoint."),
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Work on what is there, then end.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep the progress there instead.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="PORT", help="Serve Prometheus metrics there."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Go on after failures that can pass.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each batch.")
    ] = False,
) -> None:
    """Run a pipeline until Ctrl-C; a later run goes on where this one stopped.

    \b
    Examples:
      ister pipeline run orders.yaml
      ister pipeline run orders.yaml --set TOPIC=/default/orders --master spark://host:7077
      ister pipeline run orders.yaml --from earliest --available-now
      ister pipeline run orders.py:totals --metrics-port 9464
    """
    from ister.spark.pipelines import RunOptions, run_pipeline

    chosen_start = _start(start)
    outcome = _read(target, variables)
    for warning in outcome.warnings:
        say(str(warning))
    definition = outcome.get().overridden(
        start=chosen_start,
        available_now=available_now,
        checkpoint=_folder(checkpoint),
    )
    options = RunOptions(
        master=master,
        metrics_port=metrics_port,
        as_json=as_json,
        restart=restart,
        start=start,
    )
    raise typer.Exit(run_pipeline(definition, options))


@pipeline.command("validate")
def validate(
    target: TargetArgument, variables: SetOption = None, as_json: JsonOption = False
) -> None:
    """Check a pipeline without Spark and without a broker. Exit code 2 if it has mistakes.

    \b
    Examples:
      ister pipeline validate orders.yaml
      ister pipeline validate orders.yaml --json | jq .remarks
    """
    outcome = _read(target, variables)
    if as_json:
        write_json(_outcome_row(target, outcome))
    else:
        for remark in outcome.remarks:
            say(str(remark))
        say(f"{target}: {_verdict(outcome)}")
    if outcome.definition is None:
        raise typer.Exit(EXIT_MISTAKES)


@pipeline.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the pipeline and its folder.")],
    template: Annotated[
        str,
        typer.Option(
            metavar="TEMPLATE",
            help="window, enrich, join, session, state, table or python.",
        ),
    ] = "window",
) -> None:
    """Write a pipeline to start from into a new folder, with sample data and a README.

    \b
    Examples:
      ister pipeline new orders-per-minute
      ister pipeline new fraud --template state
    """
    from ister.spark.pipelines import TEMPLATES, new_files, write_files

    folder = Path(name)
    found = new_files(folder.name, template)
    write_files(folder, found)
    for one in found:
        write(f"{folder / one.path}\n".encode())
    say(f"{name}: {TEMPLATES[template]}; what to do next is in {folder / 'README.md'}")


@pipeline.command("list")
def list_pipelines(as_json: JsonOption = False) -> None:
    """List the pipelines that run on this machine.

    \b
    Example:
      ister pipeline list
    """
    from ister.spark.pipelines import list_running

    found = list_running()
    if as_json:
        write_json([_row(one) for one in found])
        return
    if not found:
        say("no pipeline runs here: `ister pipeline run FILE` starts one")
        return
    now_ms = time.time_ns() // 1_000_000
    columns = ("NAME", "PID", "UP", "SINKS", "ROWS/S", "LAG", "MASTER", "FILE")
    write_table(columns, [_list_row(one, now_ms) for one in found])


@pipeline.command("status")
def status(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show how far a pipeline that runs on this machine is.

    \b
    Examples:
      ister pipeline status orders-per-minute
      ister pipeline status orders-per-minute --json | jq .progress.sinks
    """
    from ister.spark.pipelines import find_running, list_running

    found = find_running(name)
    if found is None:
        raise PipelineNotRunningError(name, [one.name for one in list_running()])
    if as_json:
        write_json(_row(found))
        return
    now_ms = time.time_ns() // 1_000_000
    say(f"{found.name}: process {found.pid}, up {rounded_span(now_ms - found.started_ms)}")
    say(f"  of {found.file or 'a Python program'}, on {found.master or 'local[*]'}")
    if found.metrics_port is not None:
        say(f"  metrics at http://127.0.0.1:{found.metrics_port}/metrics")
    columns = ("SINK", "STATUS", "BATCH", "ROWS", "ROWS/S", "LAG", "TIME", "WATERMARK", "STATE")
    write_table(columns, [_sink_row(one) for one in _sinks(found)])


@pipeline.command("stop")
def stop(name: NameArgument, timeout: TimeoutOption = STOP_TIMEOUT_S) -> None:
    """Stop a pipeline that runs on this machine, after the batch it is at.

    Nothing is lost: the next run goes on from its checkpoint.

    \b
    Example:
      ister pipeline stop orders-per-minute
    """
    from ister.spark.pipelines import stop_running

    stopped = stop_running(name, timeout)
    say(f"{name} has stopped (it was process {stopped.pid})")


def _read(target: str, variables: Sequence[str] | None) -> "CheckedPipeline":
    from ister.spark.pipelines import read_pipeline

    return read_pipeline(target, chosen=parse_pairs(variables or (), "--set"))


def _start(text: str | None) -> str | None:
    """Return a place of the command line as a pipeline's `start`."""
    if text is None:
        return None
    place = parse_place(text, "--from")
    if isinstance(place, int):
        hint = PLACE_HELP.replace(" an offset,", "")
        raise BadRequestError(f"--from {text!r}: partitions have offsets of their own: {hint}")
    return place.astimezone(UTC).isoformat() if isinstance(place, datetime) else str(place)


def _folder(text: str | None) -> str | None:
    return text if text is None or "://" in text else str(Path(text).absolute())


def _verdict(outcome: "CheckedPipeline") -> str:
    definition = outcome.definition
    if definition is None:
        return counted(len(outcome.mistakes), "mistake")
    parts = (
        counted(len(definition.sources), "source"),
        counted(len(definition.steps), "step"),
        counted(len(definition.sinks), "sink"),
    )
    return f"no mistakes; {', '.join(parts)}"


def _outcome_row(target: str, outcome: "CheckedPipeline") -> dict[str, object]:
    from ister.spark.pipelines import to_json_values

    remarks = [
        {
            "file": one.origin.file,
            "line": one.origin.line or None,
            "level": "warning" if one.is_warning else "mistake",
            "text": one.text,
        }
        for one in outcome.remarks
    ]
    valid = outcome.definition is not None
    pipeline_ = to_json_values(outcome.definition) if valid else None
    return {"target": target, "valid": valid, "remarks": remarks, "pipeline": pipeline_}


def _row(one: "Running") -> dict[str, object]:
    from dataclasses import asdict

    return asdict(one)


def _sinks(one: "Running") -> list[Mapping[str, object]]:
    found = one.progress.get("sinks")
    return [sink for sink in found if isinstance(sink, Mapping)] if isinstance(found, list) else []


def _list_row(one: "Running", now_ms: int) -> tuple[object, ...]:
    sinks = _sinks(one)
    lags = [lag for sink in sinks if isinstance(lag := sink.get("lag"), int)]
    rates = [rate for sink in sinks if isinstance(rate := sink.get("rows_per_s"), int | float)]
    return (
        one.name,
        str(one.pid),
        rounded_span(now_ms - one.started_ms),
        len(sinks),
        round(sum(rates)) if rates else "-",
        max(lags) if lags else "-",
        one.master or "local[*]",
        one.file or "-",
    )


def _sink_row(sink: Mapping[str, object]) -> tuple[object, ...]:
    batch_ms, mark_ms = sink.get("batch_ms"), sink.get("watermark_ms")
    state_rows, state_bytes = sink.get("state_rows"), sink.get("state_bytes")
    state = "-"
    if isinstance(state_rows, int) and state_rows and isinstance(state_bytes, int):
        state = f"{counted(state_rows, 'row')}, {rounded_size(state_bytes)}"
    mark = "-"
    if isinstance(mark_ms, int):
        mark = datetime.fromtimestamp(mark_ms / 1_000, UTC).isoformat(timespec="seconds")
    rate = sink.get("rows_per_s")
    return (
        sink.get("sink", "-"),
        sink.get("status", "-"),
        *(_or_dash(sink.get(key)) for key in ("batch", "rows")),
        round(rate) if isinstance(rate, int | float) else "-",
        _or_dash(sink.get("lag")),
        rounded_span(batch_ms) if isinstance(batch_ms, int) else "-",
        mark,
        state,
    )


def _or_dash(value: object) -> object:
    return "-" if value is None else value
