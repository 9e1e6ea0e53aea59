"""Streams read past the broker: heads that are waited for, and segments where they lie."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.contract.objects.conftest import S3Server, s3_server
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.disks import contents, segments
from tests.e2e.raw import WAIT_S

import ister.sync
from ister.base.errors import OffsetGoneError, TopicNotFoundError, WrongKindError
from ister.client import StreamLocated
from ister.objects import FileKeyring
from ister.spark.source.segments import SegmentAccess, read_segments
from ister.spark.source.slices import BatchSlice, MissingRange
from ister.spark.source.tail import read_range, read_tail

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

__all__ = ["s3_server"]

TOPIC = "/default/ledger"
SMALL = ("--segment-size", "1MiB")
VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}
Client = ister.sync.Client


@pytest.fixture
def small(start_broker: StartBroker) -> BrokerProcess:
    """A broker with files of 1 MiB."""
    return start_broker(*SMALL)


@pytest.fixture
def client(small: BrokerProcess) -> Iterator[Client]:
    with ister.sync.connect(small.url) as client:
        yield client


def publish(client: Client, count: int, *, start: int = 0, topic: str = TOPIC) -> list[bytes]:
    """Publish messages of 1,000 B in batches of 100, and return them."""
    payloads = [(b"%d " % n).ljust(1_000, b"x") for n in range(start, start + count)]
    with client.producer(topic, name="p") as producer:
        for at in range(0, count, 100):
            producer.send_batch(payloads[at : at + 100])
    return payloads


def rows_of(parts: Sequence[BatchSlice]) -> list[tuple[int, bytes]]:
    return [
        (part.batch.offsets[slot], part.batch.payloads[slot])
        for part in parts
        for slot in range(part.start, part.end)
    ]


def read_sealed(
    located: StreamLocated, start: int, end: int, access: SegmentAccess | None = None
) -> tuple[list[BatchSlice], list[MissingRange]]:
    """Return what is read from segments alone, and what is not to be had there."""
    found = list(
        read_segments(
            located.number,
            located.stores,
            located.rows,
            start,
            end,
            access=access or SegmentAccess(),
        )
    )
    return (
        [one for one in found if isinstance(one, BatchSlice)],
        [one for one in found if isinstance(one, MissingRange)],
    )


def read_both(
    client: Client,
    located: StreamLocated,
    start: int,
    end: int,
    access: SegmentAccess | None = None,
) -> list[tuple[int, bytes]]:
    parts = read_range(
        lambda: client,
        TOPIC,
        start,
        end,
        number=located.number,
        stores=located.stores,
        rows=located.rows,
        access=access,
    )
    return rows_of(list(parts))


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait for what another process does by itself."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.05)


# Heads


def test_heads_of_streams_and_partitions(client: Client) -> None:
    client.create_topic(TOPIC, kind="stream")
    client.create_topic("/default/parted", kind="stream", partitions=2)
    publish(client, 300)

    heads = client.heads([TOPIC, "/default/parted"])

    assert [(head.topic, head.first_offset, head.next_offset) for head in heads] == [
        (TOPIC, 0, 300),
        ("/default/parted-part-0", 0, 0),
        ("/default/parted-part-1", 0, 0),
    ]
    assert len({head.number for head in heads}) == 3


def test_who_waits_for_messages_is_told_when_one_comes(
    client: Client, small: BrokerProcess
) -> None:
    client.create_topic(TOPIC, kind="stream")
    waiting = threading.Event()
    told: list[tuple[int, float]] = []

    def wait() -> None:
        with ister.sync.connect(small.url) as other:
            assert other.heads([TOPIC], beyond={TOPIC: 0})[0].next_offset == 0
            waiting.set()
            (head,) = other.heads([TOPIC], beyond={TOPIC: 0}, timeout=WAIT_S)
            told.append((head.next_offset, time.monotonic()))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(WAIT_S)
    begun = time.monotonic()
    with client.producer(TOPIC, name="p") as producer:
        producer.send(b"one")
    thread.join(WAIT_S)

    assert told
    assert told[0][0] == 1
    assert told[0][1] - begun < WAIT_S / 2


def test_who_waits_in_vain_is_told_after_the_time(client: Client) -> None:
    client.create_topic(TOPIC, kind="stream")
    begun = time.monotonic()

    (head,) = client.heads([TOPIC], beyond={TOPIC: 0}, timeout=0.3)

    assert time.monotonic() - begun >= 0.29
    assert head.next_offset == 0


def test_who_waits_longer_than_one_question_may_asks_again(small: BrokerProcess) -> None:
    # A client that gives a second to every answer asks twice a second.
    with ister.sync.connect(small.url, timeout=1.0) as client:
        client.create_topic(TOPIC, kind="stream")
        begun = time.monotonic()

        client.heads([TOPIC], beyond={TOPIC: 0}, timeout=2.2)

        assert time.monotonic() - begun >= 2.1


def test_what_is_no_stream_has_no_head_and_lies_nowhere(client: Client) -> None:
    client.create_topic("/default/live")

    for name, error in (("/default/live", WrongKindError), ("/default/no", TopicNotFoundError)):
        with pytest.raises(error):
            client.heads([name])
        with pytest.raises(error):
            client.locate(name, 0, 10)


def test_a_topic_that_is_deleted_under_a_watch_is_told(
    client: Client, small: BrokerProcess
) -> None:
    client.create_topic(TOPIC, kind="stream")
    failed: list[Exception] = []
    waiting = threading.Event()

    def wait() -> None:
        with ister.sync.connect(small.url) as other:
            waiting.set()
            try:
                other.heads([TOPIC], beyond={TOPIC: 0}, timeout=WAIT_S)
            except TopicNotFoundError as error:
                failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(WAIT_S)
    client.delete_topic(TOPIC)
    thread.join(WAIT_S)

    assert len(failed) == 1


# Segments on a disk


def test_sealed_segments_are_read_without_the_broker(client: Client, small: BrokerProcess) -> None:
    client.create_topic(TOPIC, kind="stream")
    payloads = publish(client, 5_000)
    located = client.locate(TOPIC, 0, 5_000)
    sealed = located.rows[-1].end_offset
    assert 3_000 < sealed < 5_000
    assert all(a.end_offset == b.first_offset for a, b in pairwise(located.rows))

    small.kill()
    parts, missing = read_sealed(located, 0, 5_000)

    assert rows_of(parts) == list(enumerate(payloads[:sealed]))
    assert [one[:2] for one in missing] == [(sealed, 5_000)]


def test_reading_segments_changes_nothing_in_the_folder(
    client: Client, small: BrokerProcess
) -> None:
    client.create_topic(TOPIC, kind="stream")
    publish(client, 3_000)
    located = client.locate(TOPIC, 0, 3_000)
    small.kill()
    data = small.folder / "data"
    before, names = contents(data), sorted(os.walk(data))

    parts, _ = read_sealed(located, 0, 3_000)

    assert parts
    assert contents(data) == before
    assert sorted(os.walk(data)) == names


@pytest.mark.parametrize(("start", "end"), [(0, 1), (99, 101), (1_234, 4_321), (0, 5_000)])
def test_any_range_is_read_whole_from_segments_and_broker(
    client: Client, start: int, end: int
) -> None:
    client.create_topic(TOPIC, kind="stream")
    payloads = publish(client, 5_000)

    found = read_both(client, client.locate(TOPIC, start, end), start, end)

    assert found == list(enumerate(payloads))[start:end]


def test_another_machines_file_of_the_name_is_not_read(client: Client) -> None:
    client.create_topic(TOPIC, kind="stream")
    payloads = publish(client, 3_000)
    located = client.locate(TOPIC, 0, 3_000)
    strangers = [msgspec.structs.replace(row, mark=row.mark ^ 1) for row in located.rows]
    foreign = msgspec.structs.replace(located, rows=strangers)

    parts, missing = read_sealed(foreign, 0, 3_000)

    assert parts == []
    assert (missing[0].start, missing[-1].end) == (0, 3_000)
    assert "another file" in missing[0].reason
    assert read_both(client, foreign, 0, 3_000) == list(enumerate(payloads))


def test_a_folder_that_is_not_on_this_machine_is_read_through_the_broker(client: Client) -> None:
    client.create_topic(TOPIC, kind="stream")
    payloads = publish(client, 3_000)
    located = client.locate(TOPIC, 0, 3_000)
    elsewhere = msgspec.structs.replace(located, stores=["file:///nowhere/at/all"])

    assert read_both(client, elsewhere, 0, 3_000) == list(enumerate(payloads))
    assert not Path("/nowhere").exists()


def test_a_damaged_segment_is_told_by_the_broker_and_the_rest_is_read(
    client: Client, small: BrokerProcess
) -> None:
    client.create_topic(TOPIC, kind="stream")
    payloads = publish(client, 5_000)
    located = client.locate(TOPIC, 0, 5_000)
    second = located.rows[1]
    path = small.folder / "data" / second.name
    data = bytearray(path.read_bytes())
    data[data.index(payloads[second.first_offset + 150])] ^= 1
    path.write_bytes(data)

    parts, missing = read_sealed(located, 0, located.rows[2].end_offset)

    # Batches have 100 messages.
    bad = (second.first_offset + 150) // 100 * 100
    assert [one[:2] for one in missing] == [(bad, second.end_offset)]
    assert [offset for offset, _ in rows_of(parts)] == [
        *range(bad),
        *range(second.end_offset, located.rows[2].end_offset),
    ]
    with pytest.raises(ister.IsterError, match="intact"):
        list(read_tail(client, TOPIC, bad, second.end_offset))


def test_what_retention_removes_between_the_question_and_the_read_is_gone_loudly(
    client: Client, small: BrokerProcess
) -> None:
    client.create_topic(TOPIC, kind="stream")
    payloads = publish(client, 4_000)
    located = client.locate(TOPIC, 0, 4_000)
    first = located.rows[1].end_offset

    client.purge(TOPIC, before=first)
    gone = small.folder / "data" / located.rows[0].name
    wait_until(lambda: not gone.exists(), "retention")

    with pytest.raises(OffsetGoneError):
        read_both(client, located, 0, 4_000)
    assert read_both(client, located, first, 4_000) == list(enumerate(payloads))[first:]
    assert client.locate(TOPIC, 0, 4_000).rows[0].first_offset == first


def test_a_compacted_stream_is_read_with_its_gaps(client: Client, small: BrokerProcess) -> None:
    client.create_topic(TOPIC, kind="stream", retention="compact")
    payload = b"x" * 1_000
    with client.producer(TOPIC, name="p") as producer:
        for at in range(60):
            keys = [f"{n % 40}" for n in range(at * 100, at * 100 + 100)]
            producer.send_batch([b"%d " % at + payload] * 100, keys=keys)
    before = client.locate(TOPIC, 0, 6_000)
    first = small.folder / "data" / before.rows[0].name
    wait_until(lambda: not first.exists(), "compaction")

    after = client.locate(TOPIC, 0, 6_000)
    with client.reader(TOPIC) as reader:
        kept = [row for batch in reader for row in zip(batch.offsets, batch.payloads, strict=True)]

    assert len(kept) < 3_000
    assert read_both(client, after, 0, 6_000) == kept
    assert read_both(client, before, 0, 6_000)[-40:] == kept[-40:]
    parts, missing = read_sealed(after, 0, after.rows[-1].end_offset)
    assert parts
    assert missing == []


def test_two_topics_in_one_file_are_told_apart(client: Client) -> None:
    for name in (TOPIC, "/default/other"):
        client.create_topic(name, kind="stream")
    payloads: list[bytes] = []
    for at in range(0, 3_000, 500):
        payloads += publish(client, 500, start=at)
        publish(client, 300, start=at, topic="/default/other")

    found = read_both(client, client.locate(TOPIC, 0, 3_000), 0, 3_000)

    assert found == list(enumerate(payloads))


@pytest.mark.parametrize("count", [1_000, 3_000, 4_000])
def test_a_topic_made_again_is_not_taken_for_the_one_that_was_meant(
    client: Client, count: int
) -> None:
    client.create_topic(TOPIC, kind="stream")
    publish(client, 3_000)
    located = client.locate(TOPIC, 0, 3_000)
    parts = read_range(
        lambda: client,
        TOPIC,
        0,
        3_000,
        number=located.number,
        stores=located.stores,
        rows=located.rows,
    )
    next(parts)

    client.delete_topic(TOPIC)
    client.create_topic(TOPIC, kind="stream")
    publish(client, count)

    with pytest.raises(TopicNotFoundError):
        list(parts)


def test_a_topic_that_is_deleted_while_it_is_read_is_told_as_one_that_is_not_there(
    client: Client,
) -> None:
    client.create_topic(TOPIC, kind="stream")
    publish(client, 20_000)
    parts = read_tail(client, TOPIC, 0, 20_000)
    next(parts)

    client.delete_topic(TOPIC)

    with pytest.raises(TopicNotFoundError):
        list(parts)


# Encryption


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")
    FileKeyring.create(tmp_path / "keys.json")
    return tmp_path / "keys.json"


def test_encrypted_segments_are_read_with_the_key_file_and_else_from_the_broker(
    start_broker: StartBroker, keys: Path
) -> None:
    broker = start_broker(*SMALL, "--key-file", str(keys))
    with ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream")
        payloads = publish(client, 3_000)
        located = client.locate(TOPIC, 0, 3_000)
        sealed = located.rows[-1].end_offset
        assert located.encrypted

        parts, _ = read_sealed(located, 0, sealed, SegmentAccess(key_file=str(keys)))
        blind, missing = read_sealed(located, 0, sealed)

        assert rows_of(parts) == list(enumerate(payloads[:sealed]))
        assert blind == []
        assert (missing[0].start, missing[-1].end) == (0, sealed)
        assert read_both(client, located, 0, 3_000) == list(enumerate(payloads))


# Object stores


@pytest.fixture
def store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the variables set that a broker finds it by."""
    for option, variable in VARIABLES.items():
        monkeypatch.setenv(variable, s3_server.options[option])
    return s3_server


def test_segments_in_a_remote_tier_are_read_from_there(
    store: S3Server, start_broker: StartBroker
) -> None:
    url = store.url("layouts-tier")
    broker = start_broker(*SMALL, "--tier", url, "--tier-after", "0s")
    with ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream")
        payloads = publish(client, 3_000)
        data = broker.folder / "data"
        wait_until(lambda: len(segments(data)) == 1, "the tier")
        located = client.locate(TOPIC, 0, 3_000)
        sealed = located.rows[-1].end_offset
    broker.kill()
    shutil.rmtree(data)

    by_environment, missing = read_sealed(located, 0, sealed)
    by_options, _ = read_sealed(located, 0, sealed, SegmentAccess(store_options=store.options))

    assert located.stores == [url]
    assert missing == []
    assert rows_of(by_environment) == rows_of(by_options) == list(enumerate(payloads[:sealed]))


def test_a_journal_in_an_object_store_is_read_from_there(
    store: S3Server, start_broker: StartBroker
) -> None:
    url = store.url("layouts-journal")
    broker = start_broker("--object-store", url)
    with ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream", durability="object")
        payloads = publish(client, 2_000)
        located = client.locate(TOPIC, 0, 2_000)

        broker.kill()
        parts, missing = read_sealed(located, 0, 2_000)

    assert {row.place for row in located.rows} == {"chunk"}
    assert missing == []
    assert rows_of(parts) == list(enumerate(payloads))


def test_a_store_that_does_not_let_us_in_is_asked_once(
    store: S3Server, start_broker: StartBroker
) -> None:
    broker = start_broker("--object-store", store.url("layouts-denied"))
    wrong = SegmentAccess(store_options=store.options | {"secret_access_key": "no"})
    with ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream", durability="object")
        payloads = publish(client, 1_000)
        located = client.locate(TOPIC, 0, 1_000)
        assert len(located.rows) > 1

        parts, missing = read_sealed(located, 0, 1_000, wrong)
        found = read_both(client, located, 0, 1_000, wrong)

    assert parts == []
    assert len({one.reason.partition(": ")[2] for one in missing}) == 1
    assert found == list(enumerate(payloads))
