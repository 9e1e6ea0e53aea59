"""Timelines in a real PostgreSQL: brokers that share it, and servers not as they should be."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from psycopg.sql import SQL, Identifier
from tests.e2e.timeline.postgres_server import PASSWORD, TEST_TIMEOUT_S, USER, PostgresServer
from tests.unit.timeline.acts import behind

from ister.base.errors import (
    BadRequestError,
    IsterError,
    MessageExistsError,
    StorageFailedError,
    TopicNotFoundError,
)
from ister.timeline import Changed, Lease, Move, Put, Row, Store, Update, Work
from ister.timeline.port import Outcome, Outcomes
from ister.timeline.postgres.opening import postgres_timelines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TEST_TIMEOUT_S)]

FAR_MS = 10**15
OpenStore = Callable[[], Store]


@pytest.fixture
def open_store(server: PostgresServer, schema: str) -> Iterator[OpenStore]:
    """Open stores on one new schema; all are closed with the test."""
    opened: list[Store] = []

    def open_one() -> Store:
        opened.append(postgres_timelines(server.url, schema=schema))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A store without topics."""
    return open_store()


@pytest.fixture
def topic(store: Store) -> int:
    """A topic without messages."""
    return store.create_topic("/default/t", "timeline", b"").number


def put(topic: int, number: int) -> Put:
    return Put(topic, f"m-{number}", "shop", number, b"payload")


def outcomes_of(found: list[Outcomes]) -> list[Outcome]:
    [outcomes] = found
    assert isinstance(outcomes, list)
    return outcomes


def made(found: list[Outcomes]) -> list[Changed]:
    return [one for one in outcomes_of(found) if isinstance(one, Changed)]


def ids(store: Store, topic: int) -> list[str]:
    return [row.id for row in store.page(topic, -FAR_MS, FAR_MS, (-FAR_MS, 0), 10_000)]


# Several brokers


def test_stores_that_race_for_the_same_leases_get_each_message_once(
    open_store: OpenStore, store: Store, topic: int
) -> None:
    store.apply(0, [Work([put(topic, number) for number in range(400)])])
    slots = store.scan(topic, 0, (-1, 0), FAR_MS, 1_000)
    start = threading.Barrier(3)

    def lease(holder: str) -> list[str]:
        own = open_store()
        own.topics()
        start.wait(20)
        got = []
        # Different pieces of the same, in different orders: they meet all the time.
        for step in (7, 30, 11):
            for first in range(0, 400, step):
                wanted = slots[first : first + step]
                wanted = wanted[::-1] if holder == "b" else wanted
                work = [Lease(topic, one.seq, one.version, holder, FAR_MS) for one in wanted]
                found = outcomes_of(own.apply(1_000, [Work([*work])]))
                got += [one.id for one in found if isinstance(one, Row)]
        return got

    with ThreadPoolExecutor(3) as pool:
        leased = list(chain.from_iterable(pool.map(lease, "abc")))

    assert sorted(leased) == sorted(f"m-{number}" for number in range(400))
    assert sum(len(store.held(topic, holder, behind(1_000), 999)) for holder in "abc") == 400


def test_stores_that_make_the_same_messages_at_once_make_each_once(
    open_store: OpenStore, topic: int
) -> None:
    start = threading.Barrier(3)

    def make(numbers: range) -> list[Changed]:
        own = open_store()
        own.topics()
        start.wait(20)
        return [
            one
            for first in range(0, 200, 20)
            for one in made(
                own.apply(0, [Work([put(topic, n) for n in numbers[first : first + 20]])])
            )
        ]

    with ThreadPoolExecutor(3) as pool:
        found = list(
            chain.from_iterable(pool.map(make, [range(200), range(200), range(199, -1, -1)]))
        )

    assert sorted(one.id for one in found) == sorted(f"m-{number}" for number in range(200))
    assert len({one.version for one in found}) == 200


def test_stores_that_move_the_same_messages_in_turn_give_each_change_a_version_of_its_own(
    open_store: OpenStore, store: Store, topic: int
) -> None:
    store.apply(0, [Work([put(topic, number) for number in range(20)])])
    start = threading.Barrier(2)

    def move(numbers: range) -> list[int]:
        own = open_store()
        own.topics()
        start.wait(20)
        work = Work([Move(topic, f"m-{number}", "shop", number + 1) for number in numbers])
        return [one.version for _ in range(20) for one in made(own.apply(0, [work]))]

    with ThreadPoolExecutor(2) as pool:
        versions = list(chain.from_iterable(pool.map(move, [range(20), range(19, -1, -1)])))

    assert len(versions) == len(set(versions)) == 800


def test_stores_that_come_first_at_once_make_the_tables_once(open_store: OpenStore) -> None:
    start = threading.Barrier(4)

    def first_call(number: int) -> int:
        own = open_store()
        start.wait(20)
        return own.create_topic(f"/default/t{number}", "timeline", b"").number

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(first_call, range(4)))

    assert sorted(numbers) == sorted(one.number for one in open_store().topics())


def test_what_one_store_did_the_other_sees(open_store: OpenStore, store: Store, topic: int) -> None:
    other = open_store()
    [one] = made(store.apply(0, [Work([put(topic, 1)])]))
    refused, changed = outcomes_of(
        other.apply(
            0, [Work([put(topic, 1), Update(topic, "m-1", "shop", b"", version=one.version)])]
        )
    )
    row = store.get(topic, "m-1")

    assert isinstance(refused, MessageExistsError)
    assert row is not None
    assert isinstance(changed, Changed)
    assert (row.payload, row.version) == (b"", changed.version)


def test_nothing_is_put_into_a_topic_that_another_store_removed(
    open_store: OpenStore, store: Store, topic: int
) -> None:
    store.apply(0, [Work([put(topic, 1)])])
    open_store().delete_topic(topic)

    [refused] = outcomes_of(store.apply(0, [Work([put(topic, 2)])]))
    assert isinstance(refused, TopicNotFoundError)
    assert ids(store, topic) == []


def test_schemas_in_one_database_know_nothing_of_each_other(
    server: PostgresServer, store: Store, topic: int
) -> None:
    other = postgres_timelines(server.url)

    assert other.topics() == []
    other.close()


# What came from outside


def test_no_work_has_no_outcomes(store: Store, topic: int) -> None:
    assert store.apply(0, []) == []
    assert store.apply(0, [Work([]), Work([], atomic=True)]) == [[], []]


# Servers that are not as they should be


def secretly_failed(call: Callable[[], object], *secrets: str) -> str:
    """Return what a call is refused with, which has no secret in it, nor in what led to it."""
    with pytest.raises(IsterError) as caught:
        call()
    error: BaseException | None = caught.value
    while error is not None:
        assert not any(secret in f"{error} {error!r}" for secret in secrets)
        error = error.__cause__
    return str(caught.value)


def test_a_wrong_password_is_told_without_it(server: PostgresServer) -> None:
    store = postgres_timelines(server.url_of("postgres", password="wr0ng-secret"))

    told = secretly_failed(store.topics, "wr0ng-secret", PASSWORD)
    assert "password authentication failed" in told
    assert "wr0ng-secret" not in repr(store)


def test_a_server_that_is_not_there_is_told_with_what_to_do(server: PostgresServer) -> None:
    store = postgres_timelines("postgresql://u:hidden-w0rd@127.0.0.1:1/shop")

    told = secretly_failed(store.topics, "hidden-w0rd")
    assert "127.0.0.1:1/shop cannot be reached" in told
    assert "start it, or correct its URL" in told


def test_a_database_that_is_not_there_is_told(server: PostgresServer) -> None:
    told = secretly_failed(postgres_timelines(server.url_of("nowhere")).topics, PASSWORD)

    assert 'database "nowhere" does not exist' in told


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:///hidden",
        "host=localhost password=hidden",
        "postgresql://u:hidden@word@localhost/shop",
        "postgresql://u:pass:hidden/shop",
        "postgresql://u:12/hidden@localhost/shop",
        "postgresql://u:hidden#@localhost:5x/shop",
        "postgresql://u:p@localhost/shop?hidden=1",
        "postgresql://u:%hidden@localhost/shop",
    ],
)
def test_a_url_that_is_none_is_refused_without_a_word_of_it(url: str) -> None:
    told = secretly_failed(lambda: postgres_timelines(url), "hidden")

    assert "postgresql://user:password@host:5432/database" in told


@pytest.mark.parametrize("schema", ["", "a b", 'a"; drop', "A", "x" * 64])
def test_a_schema_that_cannot_be_is_refused(schema: str) -> None:
    with pytest.raises(BadRequestError, match="no name of a schema"):
        postgres_timelines("postgresql://localhost", schema=schema)


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE orders (id int)",
        "CREATE TABLE format (width int)",
        "CREATE TABLE format (what text, number int)",
        "CREATE VIEW format AS SELECT 'paper' AS what, 4 AS number",
    ],
)
def test_a_schema_of_somebody_else_is_not_touched(
    server: PostgresServer, schema: str, store: Store, tables: str
) -> None:
    server.execute(f"CREATE SCHEMA {schema} {tables}")
    found = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace"
    before = server.execute(found, schema)

    with pytest.raises(StorageFailedError, match="not ours: name another one"):
        store.topics()
    assert server.execute(found, schema) == before


def test_an_empty_schema_that_somebody_made_for_us_is_used(
    server: PostgresServer, schema: str, store: Store
) -> None:
    server.execute(f"CREATE SCHEMA {schema}")

    assert store.topics() == []


def test_tables_of_another_format_are_not_touched(
    server: PostgresServer, schema: str, open_store: OpenStore, topic: int
) -> None:
    server.execute(SQL("UPDATE {}.format SET number = 2").format(Identifier(schema)))

    with pytest.raises(StorageFailedError, match="format 2, not 1: use a newer ister"):
        open_store().topics()


def test_tables_that_are_gone_are_not_made_again_behind_everybody_s_back(
    server: PostgresServer, schema: str, store: Store, topic: int
) -> None:
    server.execute(f"DROP SCHEMA {schema} CASCADE")
    with pytest.raises(StorageFailedError):
        store.topics()

    with pytest.raises(StorageFailedError, match="are gone: put them back"):
        store.topics()


def test_a_database_of_another_encoding_is_refused(server: PostgresServer) -> None:
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")

    with pytest.raises(StorageFailedError, match="encoding LATIN1"):
        postgres_timelines(server.url_of("latin")).topics()


def test_a_server_that_forgets_is_refused(server: PostgresServer, store: Store) -> None:
    server.execute("ALTER SYSTEM SET fsync = off")
    server.execute("SELECT pg_reload_conf()")
    try:
        # The server takes a moment to read its settings.
        while server.execute("SHOW fsync") != [("off",)]:
            pass
        with pytest.raises(StorageFailedError, match="fsync = off"):
            store.topics()
    finally:
        server.execute("ALTER SYSTEM RESET fsync")
        server.execute("SELECT pg_reload_conf()")


def test_a_commit_waits_for_the_disk_also_where_others_do_not(
    server: PostgresServer, store: Store
) -> None:
    server.execute(f"ALTER ROLE {USER} SET synchronous_commit = off")
    try:
        store.topics()
        connection = store._connection  # type: ignore[attr-defined]
        waits = connection.execute("SHOW synchronous_commit").fetchone()
    finally:
        server.execute(f"ALTER ROLE {USER} RESET synchronous_commit")

    assert waits == ("on",)


def test_a_user_without_rights_is_told(server: PostgresServer, schema: str) -> None:
    server.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    url = server.url.replace(f"{USER}:{PASSWORD}", "guest:guest")
    try:
        with pytest.raises(StorageFailedError, match="permission denied for database"):
            postgres_timelines(url, schema=schema).topics()
    finally:
        server.execute("DROP ROLE guest")
