"""`ister read`: a range of a stream as lines on stdout, without a subscription."""

from collections.abc import Callable
from itertools import repeat
from typing import Annotated

import typer

from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.rows import VerboseOption, batch_rows, verbose_line
from ister.cli.console.terminal import (
    EXIT_INTERRUPTED,
    JsonOption,
    flush,
    json_line,
    run,
    say,
    write,
)
from ister.cli.console.values import PLACE_HELP, parse_place
from ister.client import Reader
from ister.codec import Batch


def read(
    topic: Annotated[str, topic_argument("A stream, as /default/orders.")],
    url: UrlOption = URL,
    start: Annotated[str, typer.Option(metavar="PLACE", help=PLACE_HELP)] = "earliest",
    end: Annotated[
        str, typer.Option(metavar="PLACE", help="Where to end, itself not read; as --start.")
    ] = "latest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is published; no --end.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many messages.")
    ] = None,
    verbose: VerboseOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No words on stderr.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a stream has, one message per line.

    Nothing is acknowledged, and consumers are not disturbed. With --verbose each line is topic,
    offset, key and payload, with tabs between; the key is - for a message without one. With --json
    each line is an object: topic, partition, offset, key, attributes, id, publish_time, producer,
    and payload (text) or payload_base64 (when it is no UTF-8).

    \b
    Examples:
      ister read /default/orders
      ister read /default/orders --start 1000 --end 2000 --json
      ister read /default/orders --start 15m --follow
      ister read /default/orders --start 2026-11-15T10:00Z --end 2026-11-15T11:00Z
    """
    if follow and end != "latest":
        raise typer.BadParameter("give --end or --follow, not both")
    first = parse_place(start, "--start")
    last = None if follow else parse_place(end, "--end")

    async def read_all() -> None:
        async with connect(url) as client, client.reader(topic, start=first, end=last) as reader:
            if follow and not quiet:
                say(f"following {topic}; Ctrl-C ends")
            await _print(
                reader, lambda batch: _lines(batch, as_json=as_json, verbose=verbose), count=count
            )

    endless = follow and count is None
    run(read_all(), interrupt_code=0 if endless else EXIT_INTERRUPTED)


async def _print(
    reader: Reader, lines_of: Callable[[Batch], list[bytes]], *, count: int | None
) -> None:
    left = count
    while batches := await reader.fetch_batches():
        for batch in batches:
            lines = lines_of(batch)
            write(b"".join(lines[:left]))
            if left is not None:
                left = max(0, left - len(lines))
        flush()
        if left == 0:
            return


def _lines(batch: Batch, *, as_json: bool, verbose: bool) -> list[bytes]:
    if as_json:
        return [json_line(row) for row in batch_rows(batch)]
    if verbose:
        columns = zip(batch.offsets, batch.keys or repeat(None), batch.payloads, strict=False)
        return [verbose_line(batch.topic, *row) for row in columns]
    return [payload + b"\n" for payload in batch.payloads]
