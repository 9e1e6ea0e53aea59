"""`ister produce`: arguments, lines of stdin or of a file, to a topic."""

import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from ister.base import Time
from ister.base.errors import BadRequestError
from ister.base.limits import PRODUCER_BATCH_BYTES, PRODUCER_BATCH_COUNT
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.lines import read_lines
from ister.cli.console.terminal import JsonOption, counted, parse_pairs, run, say, write_json
from ister.cli.console.values import parse_delay_option, parse_time_option
from ister.cli.timelines.timeline import SPAN_HELP, TIME_HELP
from ister.client import BatchFuture, Client, CompressionName, Producer, SendFuture

AttributeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Attribute of every message. Repeatable."),
]
KeySeparatorOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="What stands before it in each message is the key, as ':' or '\\t' for a tab.",
    ),
]
DeliverAtOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help=f"Publish it then: {TIME_HELP}. On the disk till then."),
]
DeliverAfterOption = Annotated[
    str | None, typer.Option(metavar="SPAN", help=f"Publish it so long from now: {SPAN_HELP}.")
]


# Of a message that an error is about.
SHOWN_BYTES = 40

# Messages, to payloads and their keys.
_Split = Callable[[list[bytes]], tuple[list[bytes], Sequence[str] | None]]


class _Delay(TypedDict, total=False):
    """When messages are to be published, as `send_nowait` takes it; empty: at once."""

    deliver_at: Time
    deliver_after: timedelta


@dataclass(slots=True)
class _Sent:
    count: int = 0
    size_bytes: int = 0
    # Not yet known to be acknowledged.
    futures: deque[SendFuture | BatchFuture] = field(default_factory=deque)


def produce(
    topic: Annotated[str, topic_argument("As /default/orders; made when it is missing.")],
    payloads: Annotated[
        list[str] | None,
        typer.Argument(help="Messages. Without any, or with '-', each line of stdin is one."),
    ] = None,
    url: UrlOption = URL,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Send each line of FILE.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
    key_separator: KeySeparatorOption = None,
    attribute: AttributeOption = None,
    repeat: Annotated[
        int, typer.Option("--count", "--repeat", min=1, help="Send the whole this many times.")
    ] = 1,
    name: Annotated[str | None, typer.Option(help="Name of the producer.")] = None,
    compression: Annotated[str, typer.Option(help="none, lz4 or zstd.")] = "none",
    deliver_at: DeliverAtOption = None,
    deliver_after: DeliverAfterOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send messages to a topic.

    \b
    Examples:
      ister produce /default/hello "hello world"
      ister produce /default/hello --count 1000000 ping
      tail -f app.log | ister produce /default/logs --key web-1
      ister produce /default/orders --file orders.jsonl --attribute source=import
      ister produce /default/orders --key-separator : "customer-1:two books"
      ister produce /default/orders "remind them" --deliver-after 10m
    """
    delay = _delay(deliver_at, deliver_after)
    split = _splitter(key, key_separator)
    if file is not None and payloads:
        raise typer.BadParameter("give messages or --file, not both")
    from_stdin = file is None and (not payloads or payloads == ["-"])
    if from_stdin and repeat > 1:
        raise typer.BadParameter("stdin can be read once only: use --file with --count")
    typed = from_stdin and sys.stdin.isatty()
    if typed and not quiet:
        say("one message per line; Ctrl-D ends")
    attributes = parse_pairs(attribute or (), "--attribute")
    given = None if from_stdin else [word.encode() for word in payloads or ()]
    sent = _Sent()

    async def send_all() -> None:
        async with connect(url) as client:
            producer = client.producer(topic, name, compression=_compression(compression))
            async with producer:
                had_readers = await _has_readers(client, topic)
                start = time.perf_counter()
                # A bar would run through the lines that somebody is typing.
                hidden = quiet or as_json or typed
                with _progress(sent, _total(given, repeat), quiet=hidden) as advance:
                    async for chunk in _source(given, file, repeat):
                        await _send(producer, *split(chunk), attributes, sent, delay)
                        advance()
                    for future in sent.futures:
                        await future
                elapsed_s = time.perf_counter() - start
            if quiet:
                return
            _summarise(topic, sent, elapsed_s, delay, as_json=as_json)
            if not delay and not had_readers and sent.count:
                await _warn_of_nobody(client, topic)

    run(send_all())


async def _source(
    given: list[bytes] | None, file: Path | None, repeat: int
) -> AsyncIterator[list[bytes]]:
    """Yield chunks of payloads, small enough that progress shows and memory stays bounded."""
    if given:
        for chunk in _rounds(given, repeat):
            yield chunk
        return
    if file is None:
        async for lines in read_lines(0):
            yield lines
        return
    for _ in range(repeat):
        try:
            fd = os.open(file, os.O_RDONLY)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"--file {file}") from error
        try:
            async for lines in read_lines(fd):
                yield lines
        except IsADirectoryError as error:
            # A failed read does not know the name of its file.
            raise IsADirectoryError(error.errno, error.strerror, f"--file {file}") from error
        finally:
            os.close(fd)


def _splitter(key: str | None, separator: str | None) -> _Split:
    """Return what splits messages into payloads and their keys."""
    if separator is None:
        return lambda chunk: (chunk, None if key is None else [key] * len(chunk))
    if key is not None:
        raise typer.BadParameter("give --key or --key-separator, not both")
    between = separator.replace("\\t", "\t").encode()
    if not between:
        raise BadRequestError("--key-separator is empty: name what stands behind the key")
    return lambda chunk: _split_keys(chunk, between)


def _split_keys(chunk: list[bytes], between: bytes) -> tuple[list[bytes], list[str]]:
    rows = [message.partition(between) for message in chunk]
    for message, (_, found, _) in zip(chunk, rows, strict=True):
        if not found:
            shown = message[:SHOWN_BYTES].decode(errors="backslashreplace")
            raise BadRequestError(
                f"message {shown!r} has no key: --key-separator {between.decode()!r} is not in it"
            )
    try:
        return [payload for _, _, payload in rows], [key.decode() for key, _, _ in rows]
    except UnicodeDecodeError as error:
        shown = error.object[:SHOWN_BYTES].decode(errors="backslashreplace")
        raise BadRequestError(f"key {shown!r} is not UTF-8, as keys must be") from None


def _rounds(given: list[bytes], repeat: int) -> Iterator[list[bytes]]:
    """Yield `given` `repeat` times, joined to chunks of about a batch."""
    size_bytes = max(1, sum(map(len, given)))
    at_once = max(1, min(PRODUCER_BATCH_COUNT // len(given), PRODUCER_BATCH_BYTES // size_bytes))
    while repeat > 0:
        yield given * min(at_once, repeat)
        repeat -= at_once


async def _send(
    producer: Producer,
    chunk: list[bytes],
    keys: Sequence[str] | None,
    attributes: dict[str, str],
    sent: _Sent,
    delay: _Delay | None = None,
) -> None:
    await producer.ready()
    # What was lost with a connection must not be counted as sent.
    while sent.futures and sent.futures[0].done():
        await sent.futures.popleft()
    if attributes or delay:
        each: Sequence[str | None] = keys or [None] * len(chunk)
        for key, payload in zip(each, chunk, strict=True):
            sent.futures.append(
                producer.send_nowait(payload, key=key, attributes=attributes, **(delay or {}))
            )
    else:
        sent.futures.append(producer.send_batch_nowait(chunk, keys=keys))
    sent.count += len(chunk)
    sent.size_bytes += sum(map(len, chunk))


def _summarise(topic: str, sent: _Sent, elapsed_s: float, delay: _Delay, *, as_json: bool) -> None:
    rate = sent.count / elapsed_s if elapsed_s else 0.0
    if as_json:
        write_json(
            {
                "topic": topic,
                "messages": sent.count,
                "bytes": sent.size_bytes,
                "seconds": round(elapsed_s, 6),
                "messages_per_second": round(rate, 1),
                "delayed": bool(delay),
            }
        )
        return
    text = f"sent {counted(sent.count, 'message')} ({sent.size_bytes:,} B)"
    text += f" to {topic} in {elapsed_s:.2f} s"
    if sent.count > 1:
        text += f", {rate:,.0f} msg/s"
    if delay:
        text += "; on the broker's disk until due"
    say(text)


def _delay(deliver_at: str | None, deliver_after: str | None) -> _Delay:
    if deliver_at is not None and deliver_after is not None:
        raise typer.BadParameter("give --deliver-at or --deliver-after, one of them")
    if deliver_at is not None:
        return {"deliver_at": parse_time_option(deliver_at, "--deliver-at", "--deliver-after")}
    if deliver_after is not None:
        return {
            "deliver_after": parse_delay_option(deliver_after, "--deliver-after", "--deliver-at")
        }
    return {}


async def _has_readers(client: Client, topic: str) -> bool:
    """Whether what is sent stays somewhere: with somebody, or in a stream."""
    rows = await client.topics(topic)
    return any(row.subscriptions or row.stream is not None for row in rows)


async def _warn_of_nobody(client: Client, topic: str) -> None:
    if not await _has_readers(client, topic):
        say("note: nobody is subscribed; a live topic keeps nothing, so it went nowhere")


@contextmanager
def _progress(sent: _Sent, total: int | None, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal; yields what to call when `sent` has grown."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from ister.cli.console.terminal import stderr_console

    start = time.perf_counter()
    with Progress(
        TextColumn("{task.completed:,.0f} messages"),
        BarColumn(),
        TextColumn("{task.fields[rate]:,.0f} msg/s", justify="right"),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=total, rate=0.0)

        def advance() -> None:
            elapsed_s = time.perf_counter() - start
            bar.update(task, completed=sent.count, rate=sent.count / max(elapsed_s, 1e-9))

        yield advance


def _total(given: list[bytes] | None, repeat: int) -> int | None:
    return len(given) * repeat if given else None


def _compression(word: str) -> CompressionName:
    if word not in ("none", "lz4", "zstd"):
        raise BadRequestError(f"--compression {word!r} is not one of none, lz4, zstd")
    return word  # type: ignore[return-value]  # checked the line above
