"""Commands of those who read a stream by themselves: where it ends, and where its bytes lie.

Spec: docs/protocol.md.
"""

from typing import TypeAlias

import msgspec

from ister.wire.tagged import Listed, Mapped, Tagged


class StreamHead(msgspec.Struct, frozen=True):
    """Where a stream begins and ends now. `number` is given to one topic only, for ever."""

    topic: str
    number: int
    first_offset: int
    next_offset: int


class WatchStreams(Tagged):
    """Ask for the heads of streams, once one of them has messages beyond an offset.

    `topics` are streams or partitioned topics, whose partitions are answered for. `beyond` has an
    offset by the name of a stream or partition; one that is not in it counts as new. The answer
    comes after `wait_ms` at the latest; with 0 at once.
    """

    topics: Listed[str]
    beyond: Mapped[int] = msgspec.field(default_factory=dict)
    wait_ms: int = 0


class StreamHeads(Tagged):
    """The heads that were asked for, by name."""

    rows: list[StreamHead]


class SegmentRow(msgspec.Struct, frozen=True):
    """A sealed file with messages of a stream: offsets `first_offset` to `end_offset`.

    `position` to `end` is where to read when `end` is not 0; else the footer of the file knows,
    which is from `entries_end` to `size_bytes`. `mark` is in the header of the file: another file
    of that name has another.
    """

    store: int
    name: str
    number: int
    place: str
    size_bytes: int
    entries_end: int
    mark: int
    first_offset: int
    end_offset: int
    position: int = 0
    end: int = 0


class LocateStream(Tagged):
    """Ask where the messages of a stream from `start` to `end` lie."""

    topic: str
    start: int
    end: int


class StreamLocated(Tagged):
    """Where the messages lie, oldest first; what no segment has is to be read from the broker.

    `stores` are addresses (`file:///…`, `s3://…`) that `SegmentRow.store` counts from 0.
    `offset`: behind the last segment of this page; ask again from there while it is below `end`
    and the page has rows.
    """

    number: int
    stores: list[str]
    rows: list[SegmentRow]
    offset: int
    encrypted: bool = False


LayoutCommand: TypeAlias = WatchStreams | StreamHeads | LocateStream | StreamLocated
