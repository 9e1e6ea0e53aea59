"""Where streams end and where their bytes lie: see `Client.heads` and `Client.locate`."""

from collections.abc import Mapping, Sequence

import msgspec

from ister.base.errors import BadRequestError
from ister.client.aio.connection.link import BrokerLink
from ister.client.session import Seconds, check_topic, milliseconds
from ister.wire import (
    LocateStream,
    SegmentRow,
    StreamHead,
    StreamHeads,
    StreamLocated,
    WatchStreams,
)

# One question at the most: well within the time that a client gives to answers, which is 30 s
# unless it was told otherwise.
WATCH_MS = 10_000


async def heads(
    link: BrokerLink, topics: Sequence[str], beyond: Mapping[str, int] | None, timeout: Seconds
) -> list[StreamHead]:
    """Return the heads of streams: see `Client.heads`."""
    if isinstance(topics, str):
        raise BadRequestError(f"topics is a list of names, as [{topics!r}]")
    if not topics:
        return []  # The broker would not wait, and we would ask again and again.
    names = [check_topic(name) for name in topics]
    known = {check_topic(name): offset for name, offset in (beyond or {}).items()}
    watch_ms = min(WATCH_MS, int(link.timeout_s * 500))
    now_ms = link.clock.monotonic_ms
    deadline_ms = now_ms() + milliseconds(timeout, "timeout")
    while True:
        wait_ms = max(0, min(deadline_ms - now_ms(), watch_ms))
        command = WatchStreams(topics=names, beyond=known, wait_ms=wait_ms)
        rows = (await link.call(command, StreamHeads)).rows
        is_new = any(row.next_offset > known.get(row.topic, -1) for row in rows)
        if is_new or now_ms() >= deadline_ms:
            return rows


async def locate(link: BrokerLink, topic: str, start: int, end: int) -> StreamLocated:
    """Return all pages of where a stream lies as one: see `Client.locate`."""
    stores: dict[str, int] = {}
    rows: list[SegmentRow] = []
    offset = start
    while True:
        page = await link.call(LocateStream(topic=topic, start=offset, end=end), StreamLocated)
        slots = [stores.setdefault(store, len(stores)) for store in page.stores]
        rows += [_moved(row, slots[row.store]) for row in page.rows]
        offset = page.offset
        if offset >= end or not page.rows:
            return StreamLocated(
                number=page.number,
                stores=list(stores),
                rows=rows,
                offset=offset,
                encrypted=page.encrypted,
            )


def _moved(row: SegmentRow, store: int) -> SegmentRow:
    """Return a row of a page with the slot that its store has in all of them."""
    return row if row.store == store else msgspec.structs.replace(row, store=store)
