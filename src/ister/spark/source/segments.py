"""Sealed segments read by executors themselves: no byte of them goes through the broker.

A segment is looked for where the broker said it lies, and compared by its mark. Whatever keeps it
from being read here (it is gone, on another machine, not ours to open, encrypted under a key or
compressed in a way that this machine does not have, damaged) is no error: those offsets are read
from the broker, which knows more.

Always true: nothing is written, made or locked in a store; what is yielded has exactly the offsets
that were asked for, in order, and every offset is either in a part or in what is missing.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ister.base.errors import (
    CodecMissingError,
    ConfigError,
    CorruptedError,
    EncryptionKeyError,
)
from ister.base.limits import MIB
from ister.client import SegmentRow
from ister.codec import available
from ister.log import SealedReader, Span, Stored, sealed_span
from ister.objects import FileKeyring, open_store, store_options
from ister.spark.source.slices import BatchSlice, MissingRange, slice_batch
from ister.telemetry import library_logger

# One read. From the page cache it takes a millisecond, and gives work for some: 80,000 messages
# of 100 B. From an object store, two more that are under way meanwhile hide its latency.
WINDOW_BYTES = 8 * MIB
AHEAD_COUNT = 2
# Stores that a worker keeps connected, and that it knows to be unusable.
STORES_MAX = 16
# One that cannot be used is tried again after this. With a server that does not answer, a try takes
# 40 s: if every task made its own, reads would be far slower than through the broker.
UNUSABLE_S = 60.0

logger = library_logger("ister.spark")


@dataclass(frozen=True, slots=True)
class SegmentAccess:
    """Store options and key file for reading segments. It is pickled to executors."""

    # As in `open_store`; empty: environment variables and machine roles.
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Of an encrypted broker; empty: encrypted segments are read from the broker.
    key_file: str = ""


class SegmentStore(Protocol):
    """A store of segments, for reading only. `read` may be called from any thread."""

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""

    def expect(self, name: str, position: int, size_bytes: int) -> None:
        """Announce that this part will be read next."""

    def close(self) -> None:
        """Close what this reader has opened."""


def read_segments(
    number: int,
    stores: Sequence[str],
    rows: Sequence[SegmentRow],
    start: int,
    end: int,
    *,
    access: SegmentAccess,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[BatchSlice | MissingRange]:
    """Yield the messages `start` to `end` of the stream `number`, and what is missing, in order.

    `stores` and `rows` are as `client.locate` returned them, or those of the rows that reach into
    the range. Raises `ConfigError` when the key file, or a store with the options that were given,
    cannot be used.
    """
    readers = SegmentReaders(access, now)
    offset = start
    try:
        for row in rows:
            if row.end_offset <= offset:
                continue
            if row.first_offset >= end:
                break
            if row.first_offset > offset:
                yield MissingRange(offset, row.first_offset, "no sealed segment has it")
                offset = row.first_offset
            until = min(row.end_offset, end)
            try:
                for slice_, behind in _read_row(
                    readers, stores[row.store], row, number, offset, end
                ):
                    offset = behind
                    yield slice_
            except (OSError, CorruptedError, EncryptionKeyError, CodecMissingError) as error:
                readers.on_failure(stores[row.store], error)
                yield MissingRange(offset, until, f"{row.name}: {error}")
            offset = until
    finally:
        readers.close()
    if offset < end:
        yield MissingRange(offset, end, "no sealed segment has it")


def _read_row(
    readers: "SegmentReaders", store: str, row: SegmentRow, number: int, start: int, end: int
) -> Iterator[tuple[BatchSlice, int]]:
    """Yield the messages of one segment, each slice with the offset behind it."""
    reader, opened = readers.get(store)
    span = sealed_span(
        row.number,
        row.place,
        size_bytes=row.size_bytes,
        entries_end=row.entries_end,
        offsets=(row.first_offset, row.end_offset),
        window=(row.position, row.end),
    )
    reader.check(span, row.mark)
    for stored in _stored(reader, opened, span, number, start, end):
        if stored.batch.codec not in readers.codecs:
            # The broker unpacks what a client cannot.
            raise CodecMissingError(stored.batch.codec.name.lower())
        slice_ = slice_batch(stored.batch, start, end)
        if slice_ is not None:
            yield slice_, min(stored.end_offset, end)


def _stored(
    reader: SealedReader, store: SegmentStore, span: Span, number: int, start: int, end: int
) -> Iterator[Stored]:
    until = min(span.end_offset, end)
    return reader.read(span, number, start, until, bytes_max=WINDOW_BYTES, expect=store.expect)


class SegmentReaders:
    """The stores of one task, opened as they are needed."""

    def __init__(self, access: SegmentAccess, now: Callable[[], float]) -> None:
        self._access = access
        self._now = now
        self._keyring = FileKeyring.open(Path(access.key_file)) if access.key_file else None
        self.codecs = available()
        self._opened: dict[str, tuple[SealedReader, SegmentStore]] = {}

    def get(self, url: str) -> tuple[SealedReader, SegmentStore]:
        """Return the reader of the store at `url`, or raise `OSError` with what is wrong."""
        reason = self._find_failure(url)
        if reason:
            raise OSError(reason)
        found = self._opened.get(url)
        if found is None:
            try:
                store = _open(url, self._access.store_options)
            except ConfigError as error:
                if self._access.store_options:
                    raise
                # Nobody has told this machine how to reach it.
                raise OSError(str(error)) from error
            found = self._opened[url] = (SealedReader(store, self._keyring), store)
        return found

    def on_failure(self, url: str, error: Exception) -> None:
        """Do not try an unusable store again for `UNUSABLE_S` seconds."""
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            return
        if not self._find_failure(url):
            while len(_unusable) >= STORES_MAX:
                del _unusable[next(iter(_unusable))]
            reason = str(error) or type(error).__name__
            _unusable[self._key(url)] = self._now() + UNUSABLE_S, reason
            logger.warning("store_unusable", store=url, reason=reason)

    def _find_failure(self, url: str) -> str:
        """Return why a store is not tried at the moment; empty when it is."""
        until, reason = _unusable.get(self._key(url), (0.0, ""))
        if reason and self._now() >= until:
            _unusable.pop(self._key(url), None)
            return ""
        return reason

    def _key(self, url: str) -> "StoreKey":
        return url, tuple(sorted(self._access.store_options.items()))

    def close(self) -> None:
        """Close what was opened."""
        for _, store in self._opened.values():
            store.close()
        self._opened.clear()


def _open(url: str, options: Mapping[str, str]) -> SegmentStore:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return SegmentFolder(Path(unquote(parts.path)))
    return RemoteSegments(_connect(url, options))


class SegmentFolder:
    """Segments in the data folder of a broker on this machine, or in a shared folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A row is read to its end before the next one: one file at a time.
        self._name = ""
        self._descriptor = -1

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of a file."""
        if name != self._name:
            self.close()
            # Only for reading: nothing here can harm a broker that writes beside us.
            self._descriptor = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
            self._name = name
        data = os.pread(self._descriptor, size_bytes, position)
        while 0 < len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def expect(self, name: str, position: int, size_bytes: int) -> None:
        """Let the operating system read a part of the open file ahead."""
        if name == self._name and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, position, size_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the open file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._name, self._descriptor = "", -1


class ObjectRanges(Protocol):
    """The method of an object store that reading needs."""

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""


class RemoteSegments:
    """Segments in an object store. Announced parts are fetched ahead."""

    def __init__(self, store: ObjectRanges) -> None:
        self._store = store
        self._ahead: dict[tuple[str, int, int], Future[bytes]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; wait for it when it is being fetched ahead."""
        expected = self._ahead.pop((name, position, size_bytes), None)
        if expected is not None:
            return expected.result()
        return self._store.get_range(name, position, size_bytes)

    def expect(self, name: str, position: int, size_bytes: int) -> None:
        """Begin to fetch a part in another thread."""
        # The one to be read now is among them, and two more.
        if len(self._ahead) > AHEAD_COUNT:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AHEAD_COUNT, thread_name_prefix="ister-ahead")
        self._ahead[name, position, size_bytes] = self._threads.submit(
            self._store.get_range, name, position, size_bytes
        )

    def close(self) -> None:
        """Give up what is being fetched; connections are kept for the next task."""
        self._ahead.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


# Address and options.
StoreKey = tuple[str, tuple[tuple[str, str], ...]]

# Of this process: workers are forked, and neither connections nor threads survive that.
_stores: dict[tuple[int, StoreKey], ObjectRanges] = {}
# Until when they are not tried again, and why.
_unusable: dict[StoreKey, tuple[float, str]] = {}


def _connect(url: str, options: Mapping[str, str]) -> ObjectRanges:
    """Return the object store at `url`, which a worker keeps from task to task."""
    key = (os.getpid(), (url, tuple(sorted(options.items()))))
    found = _stores.get(key)
    if found is None:
        while len(_stores) >= STORES_MAX:
            del _stores[next(iter(_stores))]
        found = _stores[key] = open_store(url, store_options(os.environ) | dict(options))
    return found
