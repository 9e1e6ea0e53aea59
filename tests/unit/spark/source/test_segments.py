"""What executors read by themselves: every offset once, or named as missing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.log.harness import Bench, filler

from ister.base.errors import ConfigError
from ister.client import SegmentRow
from ister.codec import Batch, Codec, available, encode
from ister.log import FileBackend, Kind, LogOptions
from ister.objects import LocalDisk
from ister.spark.source.segments import (
    AHEAD_COUNT,
    UNUSABLE_S,
    RemoteSegments,
    SegmentAccess,
    read_segments,
)
from ister.spark.source.slices import BatchSlice, MissingRange

TOPIC = 7
SMALL = LogOptions(segment_bytes=8_192, extent_bytes=1_024)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A log in a real folder, most of it sealed."""
    bench = Bench(FileBackend(LocalDisk(tmp_path_factory.mktemp("data"))), SMALL)
    payload = filler(300)
    for number in range(40):
        bench.publish(TOPIC, *[payload(n) for n in range(number * 3, number * 3 + 3)])
    return bench


def rows_of(bench: Bench) -> list[SegmentRow]:
    rows = []
    for span in bench.log.sealed(TOPIC, 0, 1_000):
        segment = span.segment
        rows.append(
            SegmentRow(
                store=0,
                name=segment.name,
                number=segment.number,
                place=segment.place.value,
                size_bytes=segment.size_bytes,
                entries_end=segment.end,
                mark=bench.log.reader.opened(segment).mark,
                first_offset=span.first_offset,
                end_offset=span.end_offset,
                position=span.position,
                end=span.end,
            )
        )
    return rows


def store_of(bench: Bench) -> str:
    assert isinstance(bench.backend, FileBackend)
    assert isinstance(bench.backend.disk, LocalDisk)
    return bench.backend.disk.url


def covered(found: list[BatchSlice | MissingRange]) -> list[int]:
    """Return every offset, in the order it was yielded; of what is missing as well."""
    offsets: list[int] = []
    for one in found:
        if isinstance(one, MissingRange):
            offsets += range(one.start, one.end)
        else:
            offsets += one.batch.offsets[one.start : one.end]
    return offsets


@given(st.data())
def test_every_offset_is_read_or_missing_whatever_rows_are_known(
    bench: Bench, data: st.DataObject
) -> None:
    every = rows_of(bench)
    slots = data.draw(st.sets(st.sampled_from(range(len(every)))))
    rows = [every[slot] for slot in sorted(slots)]
    start = data.draw(st.integers(0, 119))
    end = data.draw(st.integers(start, 120))

    found = list(read_segments(TOPIC, [store_of(bench)], rows, start, end, access=SegmentAccess()))

    assert covered(found) == list(range(start, end))
    readable = {n for row in rows for n in range(row.first_offset, row.end_offset)}
    lost = [n for one in found if isinstance(one, MissingRange) for n in range(one.start, one.end)]
    assert lost == [n for n in range(start, end) if n not in readable]


def test_a_key_file_that_cannot_be_read_is_the_users_mistake(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")
    access = SegmentAccess(key_file=str(tmp_path / "none.json"))

    with pytest.raises(ConfigError, match="key file"):
        list(read_segments(TOPIC, [store_of(bench)], rows_of(bench), 0, 10, access=access))


@pytest.mark.parametrize("store", ["az://box/folder", "newer://box/folder"])
def test_a_store_that_nobody_here_knows_how_to_reach_is_left_to_the_broker(
    bench: Bench, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    rows = rows_of(bench)

    found = list(read_segments(TOPIC, [store], rows, 0, 30, access=SegmentAccess()))

    assert all(isinstance(one, MissingRange) for one in found)
    assert covered(found) == list(range(30))


def test_a_store_that_cannot_be_used_is_left_alone_by_later_tasks_for_a_while(
    bench: Bench, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.write_bytes(b"not a folder")
    rows, seconds = rows_of(bench), 100.0

    def is_read() -> bool:
        found = list(
            read_segments(
                TOPIC, [folder.as_uri()], rows, 0, 10, access=SegmentAccess(), now=lambda: seconds
            )
        )
        assert covered(found) == list(range(10))
        return any(isinstance(one, BatchSlice) for one in found)

    assert not is_read()
    folder.unlink()
    folder.symlink_to(Path(store_of(bench).removeprefix("file://")))

    seconds += UNUSABLE_S - 0.1
    assert not is_read()
    seconds += 0.1
    assert is_read()


def test_store_options_that_cannot_be_used_are_the_users_mistake(bench: Bench) -> None:
    access = SegmentAccess(store_options={"no_such_option": "1"})

    with pytest.raises(ConfigError, match="az://box"):
        list(read_segments(TOPIC, ["az://box/folder"], rows_of(bench), 0, 10, access=access))


def test_what_cannot_be_unpacked_here_is_left_to_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = available()[-1]
    bench = Bench(FileBackend(LocalDisk(tmp_path)), SMALL)
    for number in range(40):
        plain = bench.batch(TOPIC, *[b"%d" % number * 300] * 3)
        packed = Batch(b"".join(encode(plain.payloads, codec=codec if number >= 4 else Codec.NONE)))
        packed.stamp(plain.base_offset, plain.publish_time_ms)
        bench.log.append(
            Kind.BATCH,
            TOPIC,
            [packed.stamp_bytes(), packed.tail],
            count=packed.count,
            base_offset=packed.base_offset,
        )
        bench.commit()
    monkeypatch.setattr("ister.spark.source.segments.available", lambda: [Codec.NONE])

    found = list(
        read_segments(TOPIC, [store_of(bench)], rows_of(bench), 0, 60, access=SegmentAccess())
    )

    assert covered(found) == list(range(60))
    assert [one.batch.codec for one in found if isinstance(one, BatchSlice)] == [Codec.NONE] * 4


def test_a_reader_that_is_given_up_lets_go_of_its_files(bench: Bench) -> None:
    rows, store = rows_of(bench), store_of(bench)
    before = open_files()
    reading = read_segments(TOPIC, [store], rows, 0, 100, access=SegmentAccess())
    next(reading)
    assert open_files() == before + 1

    reading.close()  # type: ignore[attr-defined]  # It is a generator.

    assert open_files() == before


def open_files() -> int:
    """Return how many descriptors this process has."""
    return len(list(Path("/dev/fd").iterdir()))


class Ranges:
    """An object store that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        self.asked.append(position)
        return b"%d" % position * size_bytes


def test_what_is_expected_is_fetched_once() -> None:
    ranges = Ranges()
    remote = RemoteSegments(ranges)

    remote.expect("a", 5, 3)
    first, second = remote.read("a", 5, 3), remote.read("a", 6, 1)
    remote.close()

    assert (first, second) == (b"555", b"6")
    assert ranges.asked == [5, 6]


def test_no_more_is_fetched_ahead_than_there_is_room_for() -> None:
    ranges = Ranges()
    remote = RemoteSegments(ranges)

    for position in range(AHEAD_COUNT + 3):
        remote.expect("a", position, 1)
    found = [remote.read("a", position, 1) for position in range(AHEAD_COUNT + 1)]
    remote.close()

    assert found == [b"0", b"1", b"2"]
    assert sorted(ranges.asked) == list(range(AHEAD_COUNT + 1))
