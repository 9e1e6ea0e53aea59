"""A PostgreSQL that dies between calls and in the middle of them, and connections that break."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from tests.e2e.timeline.postgres_server import TEST_TIMEOUT_S, PostgresServer
from tests.unit.timeline.acts import behind

from ister.base.errors import StorageFailedError
from ister.timeline import Changed, Done, Lease, Move, Put, Row, Store, Work
from ister.timeline.postgres.opening import postgres_timelines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TEST_TIMEOUT_S)]

FAR_MS = 10**15


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[Store]:
    """A store without topics."""
    one = postgres_timelines(server.url, schema=schema)
    yield one
    one.close()


@pytest.fixture
def topic(store: Store) -> int:
    """A topic without messages."""
    return store.create_topic("/default/t", "timeline", b"").number


def put(topic: int, number: int) -> Put:
    return Put(topic, f"m-{number}", "shop", number, b"payload")


def ids(store: Store, topic: int) -> set[str]:
    return {row.id for row in store.page(topic, -FAR_MS, FAR_MS, (-FAR_MS, 0), 100_000)}


def test_a_call_after_a_crash_fails_and_the_next_one_goes_on(
    server: PostgresServer, store: Store, topic: int
) -> None:
    store.apply(0, [Work([put(topic, 1)])])
    server.kill()
    with pytest.raises(StorageFailedError):
        store.apply(0, [Work([put(topic, 2)])])
    with pytest.raises(StorageFailedError, match="cannot be reached"):
        store.apply(0, [Work([put(topic, 3)])])
    server.start()
    [[after]] = store.apply(0, [Work([put(topic, 4)])])  # type: ignore[misc]

    assert isinstance(after, Changed)
    assert ids(store, topic) == {"m-1", "m-4"}


def test_what_was_acknowledged_survives_a_crash_in_the_middle_and_nothing_is_half_there(
    server: PostgresServer, store: Store, topic: int
) -> None:
    acknowledged: list[int] = []
    tried: list[int] = []
    enough = threading.Event()

    def make() -> None:
        # Atomic, five at a time.
        for first in range(0, 1_000_000, 5):
            tried.append(first)
            work = Work([put(topic, number) for number in range(first, first + 5)], atomic=True)
            store.apply(0, [work])
            acknowledged.append(first)
            if len(acknowledged) >= 100:
                enough.set()

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make)
        assert enough.wait(30)
        server.kill()
        with pytest.raises(StorageFailedError):
            making.result(30)
    server.start()
    found = ids(store, topic)

    assert found >= {f"m-{first + step}" for first in acknowledged for step in range(5)}
    whole = {f"m-{first + step}" for first in tried for step in range(5)}
    assert found <= whole
    assert len(found) % 5 == 0


def test_versions_go_on_rising_after_a_crash(
    server: PostgresServer, store: Store, topic: int
) -> None:
    versions = []
    for number in range(3):
        [[one]] = store.apply(0, [Work([put(topic, number)])])  # type: ignore[misc]
        assert isinstance(one, Changed)
        versions.append(one.version)
        server.kill()
        server.start()
        with pytest.raises(StorageFailedError):
            store.topics()

    assert versions == sorted(set(versions))


def test_a_lease_survives_a_crash_and_its_holder_finishes_it(
    server: PostgresServer, store: Store, topic: int
) -> None:
    store.apply(0, [Work([put(topic, 1)])])
    [slot] = store.scan(topic, 0, (-1, 0), FAR_MS, 10)
    store.apply(5, [Work([Lease(topic, slot.seq, slot.version, "w", 1_000)])])
    server.kill()
    server.start()
    with pytest.raises(StorageFailedError):
        store.topics()
    [held] = store.held(topic, "w", behind(6), 999)
    assert isinstance(held, Row)
    store.apply(6, [Work([Done(topic, held.id, "w", held.version)])])

    assert held.payload == b"payload"
    assert ids(store, topic) == set()


def test_a_change_that_nobody_waits_for_any_more_is_never_made_later(
    server: PostgresServer, schema: str, store: Store, topic: int
) -> None:
    store.apply(0, [Work([put(topic, 1)])])
    with psycopg.connect(server.url) as other, ThreadPoolExecutor(1) as pool:
        # The change waits at the server for this one.
        other.execute(f"LOCK TABLE {schema}.messages IN SHARE MODE")
        moving = pool.submit(store.apply, 0, [Work([Move(topic, "m-1", "shop", 99)])])
        waiting = "SELECT pid FROM pg_locks WHERE NOT granted"
        while not server.execute(waiting):
            pass
        # Only this side of the connection knows that it is broken.
        connection = store._connection  # type: ignore[attr-defined]
        with socket.socket(fileno=connection.fileno()) as wire:
            wire.shutdown(socket.SHUT_RDWR)
            wire.detach()
        with pytest.raises(StorageFailedError):
            moving.result(30)
        before = store.get(topic, "m-1")
        assert not server.execute(waiting)
        other.rollback()

    assert before is not None
    assert store.get(topic, "m-1") == before
    assert before.due_ms == 1
