"""Where a stream lies: sealed segments only, each with the mark of its file, and no secrets."""

from itertools import pairwise

import pytest
from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench

from ister.base import without_secrets
from ister.base.limits import LOCATED_ROWS_MAX
from ister.broker import Page, locate
from ister.testing import FaultyDisk, VirtualClock

EACH_BYTES = 1_000


def addressed() -> FaultyDisk:
    """Return a disk that others could read, by what it says."""
    disk = FaultyDisk()
    disk.url = "file:///data/ister"
    return disk


def filled(count: int, *, disk: FaultyDisk | None = None) -> StreamBench:
    """Return a broker with so many messages in files of about four each."""
    bench = StreamBench(disk or addressed(), segment_bytes=4_096)
    bench.create()
    for n in range(count):
        bench.publish(b"%d " % n + b"x" * EACH_BYTES)
    return bench


def located(bench: StreamBench, start: int, end: int) -> Page:
    outcome = Outcome()
    locate(bench.topic(), start, end, outcome)
    bench.settle()
    assert isinstance(outcome.result, Page)
    return outcome.result


def spans(page: Page) -> list[tuple[int, int]]:
    return [(row.span.first_offset, row.span.end_offset) for row in page.rows]


def test_sealed_segments_are_told_and_the_open_file_is_not() -> None:
    bench = filled(20)
    opened = bench.storage.log.index.open_segment
    assert opened is not None

    page = located(bench, 0, 20)

    found = spans(page)
    assert found[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert 0 < found[-1][1] < 20
    assert opened.number not in {row.span.segment.number for row in page.rows}
    assert {row.store for row in page.rows} == {"file:///data/ister"}
    assert page.offset == 20


def test_marks_are_those_of_the_files() -> None:
    bench = filled(20)

    rows = located(bench, 0, 20).rows

    reader = bench.storage.log.reader
    assert [row.mark for row in rows] == [reader.opened(row.span.segment).mark for row in rows]
    assert len({row.mark for row in rows}) == len(rows)


def test_only_what_reaches_into_the_range_is_told() -> None:
    bench = filled(20)
    every = spans(located(bench, 0, 20))
    start, end = every[1][0] + 1, every[2][0] + 1

    found = spans(located(bench, start, end))

    assert found == [(start, every[1][1]), every[2]]
    assert spans(located(bench, start, start)) == []


def test_what_is_not_kept_any_more_is_not_told_though_its_bytes_are_there() -> None:
    bench = filled(20)
    every = spans(located(bench, 0, 20))
    first = every[1][0] + 1

    bench.broker.purge(TOPIC, first, lambda _: None)
    bench.settle()

    assert spans(located(bench, 0, 20))[0] == (first, every[1][1])


def test_a_disk_that_only_this_process_can_read_is_not_told() -> None:
    assert located(filled(20, disk=FaultyDisk()), 0, 20).rows == []


def test_a_segment_that_is_gone_is_left_out() -> None:
    bench = filled(20)
    log = bench.storage.log
    span = log.index.spans(bench.topic().record.topic)[1]
    log.backend.remove(span.segment.name)

    found = spans(located(bench, 0, 20))

    assert found[0][1] == span.first_offset
    assert found[1][0] == span.end_offset


def test_pages_together_have_everything() -> None:
    bench = StreamBench(addressed(), segment_bytes=4_096)
    bench.create(durability="os")
    count = LOCATED_ROWS_MAX + 100
    for _ in range(count):
        bench.publish(b"x" * 5_000)

    first = located(bench, 0, count)
    second = located(bench, first.offset, count)

    assert len(first.rows) == LOCATED_ROWS_MAX
    assert first.offset == first.rows[-1].span.end_offset == second.rows[0].span.first_offset
    assert second.offset == count
    assert len(first.rows) + len(second.rows) >= count - 1


class TickingClock(VirtualClock):
    """A clock for which looking at it takes 0.9 seconds."""

    def monotonic_ms(self) -> int:
        self.advance(0.9)
        return super().monotonic_ms()


def test_a_page_ends_when_it_has_taken_long_enough() -> None:
    bench = filled(20)
    every = spans(located(bench, 0, 20))
    bench.storage.clock = TickingClock()

    page = located(bench, 0, 20)

    assert spans(page) == every[:3]
    assert page.offset == every[2][1]


def test_a_page_of_what_cannot_be_read_ends_as_well() -> None:
    bench = filled(20)
    log = bench.storage.log
    every = log.index.spans(bench.topic().record.topic)
    for span in every:
        log.backend.remove(span.segment.name)
    bench.storage.clock = TickingClock()

    page = located(bench, 0, 20)

    assert page.rows == []
    assert page.offset == every[2].end_offset


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("s3://key:secret@bucket/folder", "s3://bucket/folder"),
        ("az://box/folder?sig=secret#x", "az://box/folder"),
        (
            "abfss://box@account.dfs.core.windows.net/f",
            "abfss://box@account.dfs.core.windows.net/f",
        ),
        ("file:///data/with%20space", "file:///data/with%20space"),
    ],
)
def test_addresses_have_no_secrets(url: str, told: str) -> None:
    assert without_secrets(url) == told
