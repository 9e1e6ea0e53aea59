"""What is answered to those who read streams by themselves: heads, and where the bytes lie."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ister.base.errors import BadRequestError, IsterError, LimitReachedError
from ister.base.limits import WATCHES_MAX
from ister.broker import Head, Page, Watch, locate
from ister.wire import (
    Command,
    LocateStream,
    SegmentRow,
    StreamHead,
    StreamHeads,
    StreamLocated,
    WatchStreams,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

Reply = Callable[[Command | IsterError], object]


def watch_streams(session: "NativeSession", command: WatchStreams, reply: Reply) -> None:
    """Tell the heads of streams, once one has messages that the client does not know."""
    if command.wait_ms > 0 and len(session.watches) >= WATCHES_MAX:
        raise LimitReachedError("watches_max", WATCHES_MAX)
    watch: Watch | None = None

    def on_heads(heads: list[Head] | IsterError) -> None:
        if watch is not None:
            session.watches.discard(watch)
        reply(heads if isinstance(heads, IsterError) else StreamHeads(rows=_rows(heads)))

    watch = session.broker.watching.watch(command.topics, command.beyond, command.wait_ms, on_heads)
    if watch is not None:
        session.watches.add(watch)


def locate_stream(session: "NativeSession", command: LocateStream, reply: Reply) -> None:
    """Tell which sealed segments have a range of a stream."""
    if command.start < 0:
        raise BadRequestError(f"offset {command.start} is below 0")
    topic = session.broker.catalog.plain_stream(command.topic)

    def on_located(page: Page | IsterError) -> None:
        if isinstance(page, IsterError):
            reply(page)
        else:
            reply(_located(topic.record.topic, page))

    locate(topic, command.start, command.end, on_located)


# Each action takes its own command type, which the table's key guarantees.
LAYOUT_ACTIONS: dict[type, Callable[["NativeSession", Any, Reply], None]] = {
    WatchStreams: watch_streams,
    LocateStream: locate_stream,
}


def _rows(heads: list[Head]) -> list[StreamHead]:
    return [StreamHead(*head) for head in heads]


def _located(number: int, page: Page) -> StreamLocated:
    stores = list(dict.fromkeys(row.store for row in page.rows))
    slots = {store: slot for slot, store in enumerate(stores)}
    rows = []
    for store, span, mark in page.rows:
        segment = span.segment
        rows.append(
            SegmentRow(
                store=slots[store],
                name=segment.name,
                number=segment.number,
                place=segment.place.value,
                size_bytes=segment.size_bytes,
                entries_end=segment.end,
                mark=mark,
                first_offset=span.first_offset,
                end_offset=span.end_offset,
                position=span.position,
                end=span.end,
            )
        )
    return StreamLocated(
        number=number, stores=stores, rows=rows, offset=page.offset, encrypted=page.encrypted
    )
