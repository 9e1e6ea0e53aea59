"""A data folder that an early version left behind when it was killed: all of it is still there.

It has two journal files of 16 KiB, of which a snapshot covers the first: written before manifests
had epochs, and before the answers of commits had a time.
"""

import zipfile
from pathlib import Path

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench, saved

from ister.base import StreamChanges
from ister.objects import LocalDisk

FOLDER = Path(__file__).parent / "folders" / "first.zip"
PART = "/default/p-part-1"


@pytest.fixture
def bench(tmp_path: Path) -> StreamBench:
    with zipfile.ZipFile(FOLDER) as folder:
        folder.extractall(tmp_path)
    return StreamBench(LocalDisk(tmp_path), segment_bytes=1 << 14)  # type: ignore[arg-type]


def test_every_message_is_there(bench: StreamBench) -> None:
    found = [message.payload.rstrip(b".") for message in bench.stored(TOPIC)]

    assert found == [b"%d" % number for number in range(50)]
    assert [m.payload for m in bench.stored("/default/c")] == [b"c%d" % n for n in range(9)]
    assert [m.payload for m in bench.stored(PART)] == [b"t0", b"t1"]


def test_subscriptions_go_on_where_they_were(bench: StreamBench) -> None:
    member = bench.consume(type="shared")
    messages = member.take()

    assert [m.offset for m in messages] == [*range(10, 20), *range(25, 50)]
    assert {m.offset: m.attempt for m in messages if m.attempt > 1} == {15: 2}
    assert member.ack(*messages) == []
    assert bench.seek(saved("here")) is None
    assert member.take_offsets() == [*range(10, 20), *range(25, 50)]


@pytest.mark.parametrize("number", [3, 45])
def test_what_was_sent_before_is_recognised(bench: StreamBench, number: int) -> None:
    again = bench.send([b"again"], ids=[f"id{number}"], sequence=number)
    by_id = bench.send([b"again"], ids=[f"id{number}"], sequence=1_000, name="other")

    assert again.offsets == by_id.offsets == [~number]
    assert bench.topic().next_offset == 50


def test_repeated_commits_are_recognised(bench: StreamBench) -> None:
    for offset, word in enumerate(("before", "behind")):
        transaction = bench.begin(word)
        bench.stage(transaction, 0, b"again")

        assert bench.commit(transaction, [PART]).result == [offset]
    assert bench.topic(PART).next_offset == 2


def test_a_checkpoint_and_another_start_keep_it(bench: StreamBench) -> None:
    bench.publish(b"50", sequence=50, ids=["id50"])
    told: list[object] = []
    bench.storage.checkpoint(told.append)
    bench.settle()
    bench.storage.log.close()

    again = StreamBench(bench.disk, segment_bytes=1 << 14)

    assert told == [None]
    assert len(again.stored(TOPIC)) == 51
    assert again.lag() == 36


def test_its_topics_can_be_changed_and_stay_so(bench: StreamBench) -> None:
    told: list[object] = []
    bench.broker.update_topic(TOPIC, StreamChanges(max_age_ms=1 << 50), told.append)
    bench.settle()
    bench.storage.log.close()

    again = StreamBench(bench.disk, segment_bytes=1 << 14)

    assert told == [None]
    assert again.topic().record.settings.max_age_ms == 1 << 50
    assert len(again.stored(TOPIC)) == 50
