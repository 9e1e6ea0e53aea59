"""Staging and publishing with a real broker that is killed: all of it or nothing, never twice."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.raw import memory_bounded

from ister import sync
from ister.base.errors import BusyError, ConnectionLostError, StageNotFoundError
from ister.base.limits import KIB, MIB
from ister.codec import encode
from ister.objects import FileKeyring
from ister.wire import StagesPublished

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

OUT = "/default/out"
TOPICS = [f"{OUT}-part-{number}" for number in range(2)]
SERIES = "spark/query"
KILLS = 10
KILLS_MAX = 60
# Written in some 10 ms: long enough to be killed in the middle of it.
BATCHES = 8
BATCH_BYTES = 512 * KIB
TIMEOUT_S = 20.0


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[sync.Client]:
    with sync.connect(broker.url, timeout=TIMEOUT_S) as client:
        client.create_topic(OUT, kind="stream", partitions=len(TOPICS))
        yield client


def stage(client: sync.Client, word: str, *payloads: bytes) -> None:
    """Stage each payload for each partition, in batches of their own."""
    with client.stage(word) as stage:
        for payload in payloads:
            for topic in TOPICS:
                stage.add(topic, encode([payload]))


def stored(client: sync.Client, topic: str) -> list[bytes]:
    """Return what a topic holds, without the filling."""
    with client.reader(topic) as reader:
        return [payload.rstrip(b".") for batch in reader for payload in batch.payloads]


def publish(client: sync.Client, number: int, *words: str) -> StagesPublished:
    return client.publish_stages(words, series=SERIES, number=number)


def test_two_stages_are_published_together_and_once(
    broker: BrokerProcess, client: sync.Client
) -> None:
    stage(client, "a", b"0", b"1")
    stage(client, "b", b"2")
    assert [stored(client, topic) for topic in TOPICS] == [[], []]
    assert publish(client, 1, "a", "b") == StagesPublished(repeated=False, messages=6)
    assert publish(client, 1, "a", "b") == StagesPublished(repeated=True)

    broker.kill()
    broker.restart()
    assert publish(client, 1, "a", "b") == StagesPublished(repeated=True)
    for topic in TOPICS:
        assert stored(client, topic) == [b"0", b"1", b"2"]


def test_a_kill_between_staging_and_publishing_is_told_and_leaves_nothing(
    broker: BrokerProcess, client: sync.Client
) -> None:
    stage(client, "a", b"0")
    broker.kill()
    broker.restart()

    with pytest.raises(StageNotFoundError):
        publish(client, 1, "a")
    assert stored(client, TOPICS[0]) == []
    stage(client, "a", b"0")
    assert publish(client, 1, "a").repeated is False


def test_a_kill_while_a_stage_is_open_is_told_to_who_adds_to_it(
    broker: BrokerProcess, client: sync.Client
) -> None:
    half = client.stage("a")
    half.add(TOPICS[0], encode([b"0"]))
    broker.kill()
    broker.restart()

    with pytest.raises(ConnectionLostError):
        half.close()
    stage(client, "a", b"0")


def test_a_broker_killed_while_it_publishes_has_all_of_it_or_nothing_and_never_twice(
    broker: BrokerProcess, client: sync.Client
) -> None:
    chance = random.Random(7)
    words = stage_all(client, 0, payloads(0), attempt=0)
    start_s = time.monotonic()
    publish(client, 0, *words)
    publish_s = time.monotonic() - start_s
    outcomes: set[bool] = set()
    number = 0
    # Until it was killed both before and after the journal had all of it.
    while number < KILLS or len(outcomes) < 2:
        number += 1
        assert number < KILLS_MAX, f"only {outcomes} was seen"
        wanted = payloads(number)
        words = stage_all(client, number, wanted, attempt=0)
        with sync.connect(broker.url, timeout=0.5) as hurried:
            killer = threading.Timer(chance.uniform(0, 1.5 * publish_s), broker.kill)
            killer.start()
            with suppress(BusyError, StageNotFoundError):
                publish(hurried, number, *words)
            killer.join()
        broker.restart()

        found = [payloads_of(client, topic, number) for topic in TOPICS]
        assert found in ([wanted, wanted], [[], []])
        # As a query does that starts again: the same number, staged anew.
        words = stage_all(client, number, wanted, attempt=1)
        done = publish(client, number, *words)
        assert done.repeated is (found == [wanted, wanted])
        outcomes.add(done.repeated)

    everything = [payload for n in range(number + 1) for payload in payloads(n)]
    for topic in TOPICS:
        assert stored(client, topic) == everything


def payloads(number: int) -> list[bytes]:
    return [b"%d/%d" % (number, slot) for slot in range(BATCHES)]


def stage_all(client: sync.Client, number: int, wanted: list[bytes], *, attempt: int) -> list[str]:
    """Stage payloads, filled up, in two stages; return their words."""
    half = len(wanted) // 2
    words = [f"{number}-{attempt}-{part}" for part in range(2)]
    for word, some in zip(words, (wanted[:half], wanted[half:]), strict=True):
        stage(client, word, *(payload.ljust(BATCH_BYTES, b".") for payload in some))
    return words


def payloads_of(client: sync.Client, topic: str, number: int) -> list[bytes]:
    return [p for p in stored(client, topic) if p.startswith(b"%d/" % number)]


def test_memory_stays_bounded_while_much_is_staged_and_published(
    broker: BrokerProcess, client: sync.Client
) -> None:
    batch = encode([bytes(1000 * KIB)])
    stage(client, "warm", *[bytes(1000 * KIB)] * 8)
    with memory_bounded(broker.pid, 96 * MIB):
        with (
            sync.connect(broker.url) as other,
            client.stage("a") as one,
            other.stage("b") as two,
        ):
            for _ in range(128):
                one.add(TOPICS[0], batch)
                two.add(TOPICS[1], batch)
        assert publish(client, 1, "a", "b").messages == 256


def test_with_encryption_what_is_staged_is_published_and_nothing_is_left_in_the_folder(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    FileKeyring.create(tmp_path / "keys")
    broker = start_broker("--key-file", str(tmp_path / "keys"))
    with sync.connect(broker.url) as client:
        client.create_topic(OUT, kind="stream", partitions=len(TOPICS))
        stage(client, "a", b"a secret of ours")
        publish(client, 1, "a")

        assert stored(client, TOPICS[0]) == [b"a secret of ours"]
    broker.kill()
    for path in (broker.folder / "data").rglob("*"):
        assert not path.is_file() or b"a secret of ours" not in path.read_bytes()
