"""Staging the rows of one task with a broker, invisible until they are published.

Always true of what `stage_rows` returns: all rows are staged, under unique words, so that each of
two attempts at a task can be published or dropped alone.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from ister.base.errors import IsterError
from ister.base.limits import (
    KIB,
    MIB,
    STAGE_TOPICS_MAX,
)
from ister.client import sync
from ister.spark.sink.encoder import EncodedBatch, EncoderTarget, RowEncoder, SinkLayout
from ister.spark.sink.options import WriteOptions
from ister.spark.sink.topics import topics_of

if TYPE_CHECKING:
    import pyarrow as pa

# A stage is published whole, and a publish has up to 1 GiB: with a quarter of it in a stage, a
# large job goes in steps that are nearly full.
STAGE_BYTES = 256 * MIB

# What is no more than this in the end goes to the broker in one step: the only event of a
# micro-batch takes one round trip, and one change of threads.
SMALL_BYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The stages of one task, and how many rows they hold."""

    stages: tuple["StageSize", ...]
    rows: int


@dataclass(frozen=True, slots=True)
class StageSize:
    """A stage, by its word, and its size."""

    word: str
    size_bytes: int
    batches: int


def stage_rows(
    client: sync.Client,
    batches: "Iterable[pa.RecordBatch]",
    *,
    options: WriteOptions,
    layout: SinkLayout,
    turn: int,
) -> StagedRows:
    """Stage all rows, or raise with nothing staged, as far as the broker can still be reached.

    `turn`: which partition the first rows without a key go to.
    """
    message_bytes_max, batch_bytes_max = client.batch_limits
    topics = topics_of(client)
    target = EncoderTarget(
        layout,
        topic=options.topic,
        partitions_of=lambda topic: topics.partitions_of(
            client, options, topic, now_s=time.monotonic()
        ),
        message_bytes_max=message_bytes_max,
        batch_bytes_max=batch_bytes_max,
        producer=options.producer.encode(),
        codec=options.codec,
    )
    encoder = RowEncoder(target, turn=turn)
    staging = _Staging(client, options.keep_s)
    try:
        for rows in batches:
            for stream, batch in encoder.add(rows):
                staging.add(stream, batch)
        for stream, batch in encoder.finish():
            staging.add(stream, batch)
        staging.close()
    except BaseException:
        # A topic may have been made anew, with other partitions.
        topics.forget()
        staging.drop()
        raise
    return StagedRows(tuple(staging.closed), encoder.rows)


def drop_stages(client: sync.Client, words: Iterable[str]) -> None:
    """Drop stages if the broker is connected; otherwise they expire by themselves."""
    names = list(words)
    if not names or not client.connected:
        return
    try:
        client.drop_stages(names)
    except IsterError:
        pass  # They expire by themselves, and the caller has an error of its own.


class _Staging:
    """The stages of one task, one after the other."""

    def __init__(self, client: sync.Client, keep_s: float) -> None:
        self._client = client
        self._keep_s = keep_s
        # Of the stage that is being filled; its word, once the broker may know of it.
        self._word = ""
        self._open: sync.Stage | None = None
        self._bytes = 0
        self._batches = 0
        self._streams: set[str] = set()
        # Its first batches, as long as they are few.
        self._first: list[EncodedBatch] = []
        self.closed: list[StageSize] = []

    def add(self, stream: str, batch: tuple[bytes, bytes]) -> None:
        """Stage a batch. Waits while the broker is behind."""
        self._bytes += len(batch[1])
        self._batches += 1
        self._streams.add(stream)
        self._first.append((stream, batch))
        if self._open is None and self._bytes > SMALL_BYTES:
            # It is opened with the first batch: a round trip less.
            self._open = self._client.stage(self._new_word(), keep=self._keep_s)
        if self._open is not None:
            for row in self._first:
                self._open.add(*row)
            self._first.clear()
        if self._bytes >= STAGE_BYTES or len(self._streams) >= STAGE_TOPICS_MAX:
            self.close()

    def close(self) -> None:
        """End the stage that is being filled: only now the broker says what is wrong."""
        if not self._batches:
            return
        if self._open is not None:
            report = self._open.close()
        else:
            word = self._new_word()
            report = self._client.stage_batches(word, self._first, keep=self._keep_s)
        self.closed.append(StageSize(self._word, report.size_bytes, self._batches))
        self._word, self._open = "", None
        self._bytes = self._batches = 0
        self._streams, self._first = set(), []

    def drop(self) -> None:
        """Drop all stages."""
        words = [stage.word for stage in self.closed]
        drop_stages(self._client, [*words, self._word] if self._word else words)

    def _new_word(self) -> str:
        self._word = f"spark-{uuid4().hex}"
        return self._word
