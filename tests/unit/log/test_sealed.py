"""Sealed segments read from outside: exactly what was asked for, or an error that says why not."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.log.harness import SMALL, Bench, filler

from ister.base.errors import CorruptedError
from ister.codec import Batch
from ister.log import ChunkBackend, FileBackend, LogOptions, SealedReader, Span, sealed_span
from ister.objects import LocalStore, MemoryDisk

TOPIC, OTHER = 7, 8


def filled(backend: FileBackend | ChunkBackend, count: int = 60) -> Bench:
    """Return a log with two topics side by side, most of it sealed."""
    bench = Bench(backend)
    payload = filler(300)
    for number in range(count):
        bench.publish(TOPIC, *[payload(n) for n in range(number * 3, number * 3 + 3)])
        bench.publish(OTHER, payload(number))
    return bench


def read(
    bench: Bench, start: int, end: int, *, topic: int = TOPIC, bytes_max: int = 2_048
) -> list[tuple[int, bytes]]:
    """Return offset and payload of what sealed segments have, cut to the range."""
    reader = SealedReader(bench.backend)
    found = []
    for span in bench.log.sealed(topic, start, end):
        reader.check(span, bench.log.reader.opened(span.segment).mark)
        until = min(end, span.end_offset)
        for stored in reader.read(
            span, topic, max(start, span.first_offset), until, bytes_max=bytes_max
        ):
            assert stored.first_offset < until
            rows = zip(stored.batch.offsets, stored.batch.payloads, strict=True)
            found += [row for row in rows if start <= row[0] < end]
    return found


def sealed_end(bench: Bench, topic: int = TOPIC) -> int:
    return bench.log.index.spans(topic)[-1].end_offset


BACKENDS: list[Callable[[], FileBackend | ChunkBackend]] = [
    lambda: FileBackend(MemoryDisk()),
    lambda: ChunkBackend(LocalStore(MemoryDisk())),
]


@pytest.mark.parametrize("make", BACKENDS, ids=["files", "chunks"])
def test_everything_that_is_sealed_is_read_as_the_owner_reads_it(
    make: Callable[[], FileBackend | ChunkBackend],
) -> None:
    bench = filled(make())
    end = sealed_end(bench)

    assert end > 100
    assert read(bench, 0, end) == bench.read(TOPIC)[:end]
    assert read(bench, 0, sealed_end(bench, OTHER), topic=OTHER)


BENCH = filled(FileBackend(MemoryDisk()))


@given(st.data(), st.sampled_from([1, 700, 2_048, 1 << 20]))
def test_any_range_is_read_exactly(data: st.DataObject, bytes_max: int) -> None:
    start = data.draw(st.integers(0, sealed_end(BENCH) - 1))
    end = data.draw(st.integers(start + 1, sealed_end(BENCH)))

    assert [offset for offset, _ in read(BENCH, start, end, bytes_max=bytes_max)] == list(
        range(start, end)
    )


def test_spans_leave_no_offset_to_nobody() -> None:
    spans = BENCH.log.sealed(TOPIC, 5, 150)

    assert spans[0].first_offset == 5
    assert spans[-1].end_offset >= 150
    assert all(before.end_offset == after.first_offset for before, after in pairwise(spans))


def test_no_more_spans_are_looked_at_than_are_wanted() -> None:
    spans = BENCH.log.sealed(TOPIC, 40, 150)

    assert len(spans) > 2
    assert BENCH.log.sealed(TOPIC, 40, 150, count_max=2) == spans[:2]


def test_what_is_read_keeps_nothing_of_others_in_memory() -> None:
    bench = Bench(ChunkBackend(LocalStore(MemoryDisk())), LogOptions())
    for topic, size in ((TOPIC, 100), (OTHER, 100_000), (TOPIC, 100)):
        bench.append(topic, b"x" * size)
    bench.commit()
    [own] = bench.log.sealed(TOPIC, 0, 2)
    assert own.end - own.position > 100_000
    size = own.segment.size_bytes
    # As those outside know it.
    span = sealed_span(
        own.segment.number,
        own.segment.place,
        size_bytes=size,
        entries_end=size,
        offsets=(0, 2),
        window=(own.position, own.end),
    )

    batches = SealedReader(bench.backend).read(span, TOPIC, 0, 2, bytes_max=1 << 20)

    assert [is_alone(stored.batch) for stored in batches] == [True, True]


def is_alone(batch: Batch) -> bool:
    """Whether a batch has no more in memory than itself."""
    held = batch.tail.obj
    assert isinstance(held, bytes)
    return len(held) <= 2 * batch.size_bytes


def test_another_file_of_the_name_is_not_taken_for_the_one_that_was_meant() -> None:
    bench = filled(FileBackend(MemoryDisk()))
    (span, *_) = bench.log.sealed(TOPIC, 0, 10)
    mark = bench.log.reader.opened(span.segment).mark

    with pytest.raises(FileNotFoundError, match="another file"):
        SealedReader(bench.backend).check(span, mark + 1)


def test_a_segment_that_is_gone_is_not_found() -> None:
    bench = filled(FileBackend(MemoryDisk()))
    (span, *_) = bench.log.sealed(TOPIC, 0, 10)
    bench.backend.remove(span.segment.name)

    with pytest.raises(FileNotFoundError):
        SealedReader(bench.backend).check(span, 1)


def damaged(bench: Bench, span: Span, payload: bytes) -> SealedReader:
    """Change a byte of a message on the disk, and return a reader of what is there now."""
    assert isinstance(bench.backend, FileBackend)
    name = span.segment.name
    data = bytearray(bench.backend.get(name))
    data[data.index(payload)] ^= 1
    bench.backend.remove(name)
    bench.backend.put(name, bytes(data))
    return SealedReader(bench.backend)


def test_what_is_before_damage_is_read_and_the_rest_is_an_error() -> None:
    bench = filled(FileBackend(MemoryDisk()))
    (span, *_) = bench.log.sealed(TOPIC, 0, 10)
    reader = damaged(bench, span, b"6 xxx")
    batches = reader.read(span, TOPIC, 0, 12, bytes_max=1 << 20)
    found = [next(batches).first_offset, next(batches).first_offset]

    with pytest.raises(CorruptedError):
        next(batches)

    assert found == [0, 3]


def test_damage_of_others_hurts_nobody_else() -> None:
    bench = filled(FileBackend(MemoryDisk()))
    (span, *_) = bench.log.sealed(TOPIC, 0, 10)
    reader = damaged(bench, span, b"6 xxx")
    (other, *_) = bench.log.sealed(OTHER, 0, 3)

    found = [
        stored.first_offset
        for stored in reader.read(other, OTHER, 0, other.end_offset, bytes_max=1 << 20)
    ]

    assert found == list(range(other.end_offset))


def test_every_part_but_the_first_is_announced_once_before_it_is_read() -> None:
    bench = filled(FileBackend(MemoryDisk()))
    (span, *_) = bench.log.sealed(TOPIC, 0, 10)
    events: list[tuple[str, int, int]] = []

    class Noting:
        def read(self, name: str, position: int, size_bytes: int) -> bytes:
            events.append(("read", position, size_bytes))
            return bench.backend.read(name, position, size_bytes)

    list(
        SealedReader(Noting()).read(
            span,
            TOPIC,
            0,
            span.end_offset,
            bytes_max=SMALL.extent_bytes,
            expect=lambda name, position, size: events.append(("expect", position, size)),
        )
    )

    announced = [event[1:] for event in events if event[0] == "expect"]
    # The first is the footer, the second what nobody could be told of before.
    read_later = [event[1:] for event in events if event[0] == "read"][2:]
    assert len(announced) > 3
    assert announced == read_later
    assert all(
        events.index(("expect", *part)) < events.index(("read", *part)) for part in announced
    )
