"""Stream topics: offsets, deduplication, retention, and reading from memory or from the log."""

from ister.broker.streams.positions import resolve, resolving
from ister.broker.streams.read_ahead import ReadAhead, ReadAheadBudget
from ister.broker.streams.reader import Reader, ReaderSink, open_reader
from ister.broker.streams.recent import BATCH_OVERHEAD_BYTES, RecentBudget
from ister.broker.streams.retention import BY_ACKS
from ister.broker.streams.segments import Located, Page, locate
from ister.broker.streams.stream import OnStored, StreamTopic
from ister.broker.streams.streams import Streams
from ister.broker.streams.watches import Head, Watch, Watching

__all__ = [
    "BATCH_OVERHEAD_BYTES",
    "BY_ACKS",
    "Head",
    "Located",
    "OnStored",
    "Page",
    "ReadAhead",
    "ReadAheadBudget",
    "Reader",
    "ReaderSink",
    "RecentBudget",
    "StreamTopic",
    "Streams",
    "Watch",
    "Watching",
    "locate",
    "open_reader",
    "resolve",
    "resolving",
]
