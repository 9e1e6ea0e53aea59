"""`ister topics export` and `ister topics import`: the messages of a stream as lines of JSON.

A line is an object as `ister read --json` prints it. An import takes `payload` (text) or
`payload_base64`, `key`, `attributes` and `id`; the broker gives offsets and publish times.
"""

import base64
import binascii
import os
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from ister.base import find_partition
from ister.base.errors import BadRequestError, TopicNotFoundError, WrongKindError
from ister.base.limits import PRODUCER_BATCH_BYTES, PRODUCER_BATCH_COUNT
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.lines import read_lines
from ister.cli.console.rows import batch_rows
from ister.cli.console.terminal import (
    JsonOption,
    counted,
    flush,
    json_line,
    run,
    say,
    write,
    write_json,
)
from ister.client import BatchFuture, Client, Producer

KEPT_ONLY = "it keeps no messages to copy; streams do"


class Line(msgspec.Struct):
    """What is read of a line; other fields are passed over."""

    topic: str = ""
    payload: str | None = None
    payload_base64: str | None = None
    key: str | None = None
    attributes: dict[str, str] | None = None
    id: str | None = None

    @property
    def content(self) -> bytes:
        """The payload. Raises `ValueError` when there is none, or two, or it is not base64."""
        if (self.payload is None) == (self.payload_base64 is None):
            raise ValueError("give one of payload, payload_base64")
        if self.payload is not None:
            return self.payload.encode()
        return base64.b64decode(self.payload_base64 or "", validate=True)


_decode = msgspec.json.Decoder(Line).decode


def export_topic(
    topic: Annotated[str, topic_argument("A stream, as /default/orders.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Replaced when whole; - for stdout.")],
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """Write the messages of a stream to a file, one JSON object per line.

    Each has topic, partition, offset, key, attributes, id, publish_time, producer, and payload
    (text) or payload_base64 (when it is no UTF-8). It ends with the newest message at the start.

    \b
    Examples:
      ister topics export /default/orders orders.jsonl
      ister topics export /default/orders - | gzip > orders.jsonl.gz
    """
    if as_json and file == "-":
        raise typer.BadParameter("--json and the messages cannot both go to stdout")

    async def export() -> int:
        count = 0
        async with connect(url) as client:
            await _check_stream(client, topic)
            async with client.reader(topic, start="earliest", end="latest") as reader:
                with _opened(file) as opened:
                    while batches := await reader.fetch_batches():
                        for batch in batches:
                            lines = [json_line(row) for row in batch_rows(batch)]
                            count += len(lines)
                            _put(opened, b"".join(lines))
        return count

    count = run(export())
    if as_json:
        write_json({"topic": topic, "file": file, "messages": count})
    else:
        say(f"exported {counted(count, 'message')} of {topic} to {file}")


def import_topic(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines of JSON; - for stdin.")],
    topic: Annotated[
        str | None, typer.Argument(help="A stream. Without it, the topic in the first line.")
    ] = None,
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """Publish the messages in a file that `ister topics export` has written.

    Payloads, keys, attributes and ids are as they were; offsets and publish times are new. The
    stream must exist. Messages with an id are stored once, also when a file is imported again
    within the dedup window of the stream.

    \b
    Examples:
      ister topics import orders.jsonl
      gunzip < orders.jsonl.gz | ister topics import - /default/orders-copy
    """

    async def publish() -> tuple[str, int]:
        async with connect(url) as client:
            importing = _Import(client, file, topic)
            await importing.run()
            return importing.topic or "", importing.count

    into, count = run(publish())
    if as_json:
        write_json({"topic": into, "file": file, "messages": count})
    else:
        say(f"imported {counted(count, 'message')} to {into}")


class _Import:
    """One file on its way to a stream."""

    def __init__(self, client: Client, file: str, topic: str | None) -> None:
        self.topic = topic
        self.count = 0
        self._client = client
        self._file = file
        self._producer: Producer | None = None
        self._sent: deque[BatchFuture] = deque()

    async def run(self) -> None:
        """Send everything, and wait until it is acknowledged."""
        fd = 0 if self._file == "-" else os.open(self._file, os.O_RDONLY)
        try:
            number = 0
            async for lines in read_lines(fd):
                rows = [
                    _parse(line, f"{self._file}, line {number + slot}")
                    for slot, line in enumerate(lines, 1)
                    if line.strip()
                ]
                number += len(lines)
                for part in _parts(rows):
                    await self._send(part)
            for future in self._sent:
                await future
        finally:
            if fd:
                os.close(fd)
            if self._producer is not None:
                await self._producer.close()

    async def _send(self, rows: list[tuple[Line, bytes]]) -> None:
        producer = self._producer or await self._open(rows[0][0])
        await producer.ready()
        while self._sent and self._sent[0].done():
            await self._sent.popleft()
        lines = [line for line, _ in rows]
        self._sent.append(
            producer.send_batch_nowait(
                [content for _, content in rows],
                keys=[line.key for line in lines],
                attributes=[line.attributes or None for line in lines],
                ids=[line.id for line in lines],
            )
        )
        self.count += len(rows)

    async def _open(self, first: Line) -> Producer:
        if self.topic is None:
            partition = find_partition(first.topic)
            self.topic = partition[0] if partition else first.topic
        if not self.topic:
            raise BadRequestError(f"{self._file} does not say of which topic it is: name the topic")
        await _check_stream(self._client, self.topic)
        self._producer = await self._client.producer(self.topic)
        return self._producer


def _parse(line: bytes, place: str) -> tuple[Line, bytes]:
    try:
        row = _decode(line)
        return row, row.content
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise BadRequestError(f"{place}: {error}") from None


def _parts(rows: list[tuple[Line, bytes]]) -> Iterator[list[tuple[Line, bytes]]]:
    """Divide rows into parts of about a batch."""
    part: list[tuple[Line, bytes]] = []
    size_bytes = 0
    for row in rows:
        if part and (
            len(part) >= PRODUCER_BATCH_COUNT or size_bytes + len(row[1]) > PRODUCER_BATCH_BYTES
        ):
            yield part
            part, size_bytes = [], 0
        part.append(row)
        size_bytes += len(row[1])
    if part:
        yield part


async def _check_stream(client: Client, topic: str) -> None:
    """Raise unless a topic is a stream: anything else would be made, or would keep nothing."""
    rows = await client.topics(topic)
    if not rows:
        raise TopicNotFoundError(topic, "stream")
    if rows[0].kind != "stream":
        raise WrongKindError(topic, rows[0].kind, KEPT_ONLY)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO | None]:
    """Yield a file that takes the place of `file` once it is whole; `None` for stdout."""
    if file == "-":
        yield None
        return
    path = Path(file)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as opened:
            yield opened
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _put(opened: BinaryIO | None, lines: bytes) -> None:
    if opened is not None:
        opened.write(lines)
    else:
        write(lines)
        flush()
