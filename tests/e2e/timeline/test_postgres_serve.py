"""`ister serve --timelines`: a broker process with its timelines in a real PostgreSQL."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker, free_port, plain_environment
from tests.e2e.timeline.postgres_server import PASSWORD, TEST_TIMEOUT_S, USER, PostgresServer

import ister
from ister.base.errors import MessageExistsError, StorageFailedError
from ister.timeline import FILE_NAME, SqliteStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TEST_TIMEOUT_S)]

TOPIC = "/default/reminders"
WAIT_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """The URL of a database that nobody else uses."""
    name = f"serve_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    yield server.url_of(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def own_broker(database: str, start_broker: StartBroker) -> BrokerProcess:
    """A broker with its timelines in that database."""
    return start_broker("--timelines", database)


def serve(folder: Path, *args: str, **environment: str) -> str:
    """Return what a broker says that does not start."""
    command = [sys.executable, "-m", "ister", "serve", "--no-grpc", "--data", str(folder / "data")]
    command += ["--port", str(free_port()), "--http-port", str(free_port()), *args]
    done = subprocess.run(
        command,
        env={**plain_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode not in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


async def put_until_it_works(timeline: ister.Timeline, id: str) -> None:
    """Put a message as soon as the storage takes it."""
    while True:
        try:
            await timeline.put(b"x", id=id)
            return
        except MessageExistsError:
            return  # By a call before, of which it was not known what came.
        except StorageFailedError:
            await asyncio.sleep(0.1)


async def test_messages_are_in_the_database_and_outlive_a_restart(
    own_broker: BrokerProcess, server: PostgresServer, database: str
) -> None:
    async with ister.connect(own_broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline", max_leases=3)
        timeline = client.timeline(TOPIC, group="shop")
        await timeline.put(b"later", after=3600.0, id="later")
        await timeline.put(b"now", id="now")
        async with timeline.consume("w") as leases:
            lease = await leases.receive(timeout=WAIT_S)
            await lease.done()

        await asyncio.to_thread(own_broker.restart)
        found = [message.id async for message in timeline.list()]

    assert lease.payload == b"now"
    assert found == ["later"]
    assert not (own_broker.folder / "data" / FILE_NAME).exists()


async def test_a_server_that_dies_and_comes_back_costs_errors_and_nothing_else(
    own_broker: BrokerProcess, server: PostgresServer
) -> None:
    async with ister.connect(own_broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC, group="shop")
        async with timeline.consume("w") as leases, client.subscribe("/default/live", "s") as live:
            await timeline.put(b"x", id="held")
            held = await leases.receive(timeout=WAIT_S)
            await timeline.put(b"x", after=1.0, id="while-down")
            await asyncio.to_thread(server.kill)
            with pytest.raises(StorageFailedError, match="PostgreSQL at 127"):
                await timeline.put(b"x", id="refused")
            with pytest.raises(StorageFailedError):
                await held.extend(60.0)
            async with client.producer("/default/live") as producer:
                await producer.send(b"goes on")
            message = await live.receive(timeout=WAIT_S)
            await asyncio.to_thread(server.start)
            await put_until_it_works(timeline, "after")
            handed = {(await leases.receive(timeout=WAIT_S)).id for _ in range(2)}
            await held.done()

    assert message.payload == b"goes on"
    assert handed == {"while-down", "after"}
    log = own_broker.log_text()
    assert log.count("timelines_failed") == log.count("timelines_recovered") == 1
    assert PASSWORD not in log


async def test_a_server_that_hangs_is_given_up_and_used_again_when_it_goes_on(
    own_broker: BrokerProcess, server: PostgresServer
) -> None:
    async with ister.connect(own_broker.url, timeout=WAIT_S) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC, group="shop")
        await timeline.put(b"x", id="before")
        server.pause()
        try:
            with pytest.raises(StorageFailedError, match="no answer for 10 s"):
                await timeline.put(b"x", id="unknown")
        finally:
            server.resume()
        await put_until_it_works(timeline, "after")
        found = {message.id async for message in timeline.list()}

    assert {"before", "after"} <= found <= {"before", "unknown", "after"}


async def test_all_who_wait_for_a_server_that_hangs_are_told_and_the_broker_ends(
    own_broker: BrokerProcess, server: PostgresServer
) -> None:
    async with ister.connect(own_broker.url, timeout=WAIT_S) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC, group="shop")
        server.pause()
        try:
            # One after the other they would wait for longer than anybody does.
            calls = [call for n in range(30) for call in (timeline.get(f"{n}"), timeline.count())]
            told = await asyncio.gather(*calls, return_exceptions=True)
            code = await asyncio.to_thread(own_broker.stop)
        finally:
            server.resume()

    assert {type(one) for one in told} == {StorageFailedError}
    assert code == 0


async def test_a_broker_that_was_killed_is_started_again_at_once(
    own_broker: BrokerProcess, server: PostgresServer
) -> None:
    async with ister.connect(own_broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        await client.timeline(TOPIC).put(b"x", after=3600.0, id="kept")
        own_broker.kill()
        await asyncio.to_thread(own_broker.restart)

        assert await client.timeline(TOPIC).count() == 1


# What does not start


def test_a_database_that_another_broker_has_is_refused(
    own_broker: BrokerProcess, database: str, tmp_path: Path
) -> None:
    told = serve(tmp_path, "--timelines", database)

    assert "another broker has the timelines in schema 'ister' (process" in told
    assert "stop it, or use another database" in told


def test_a_wrong_password_is_told_and_no_password_is_shown(
    server: PostgresServer, tmp_path: Path
) -> None:
    url = server.url_of("postgres", password="wr0ng-secret")
    told = serve(tmp_path, ISTER_TIMELINES=url)

    assert "--timelines: PostgreSQL at" in told
    assert "password authentication failed" in told
    assert "wr0ng-secret" not in told


def test_a_server_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    told = serve(tmp_path, "--timelines", "postgresql://u:hidden-w0rd@127.0.0.1:1/shop")

    assert "127.0.0.1:1/shop cannot be reached" in told
    assert "start it, or correct its URL" in told
    assert "hidden-w0rd" not in told


@pytest.mark.parametrize("url", ["mysql://u:hidden@h/d", "postgresql://u:hidden@w@host/d"])
def test_a_url_that_is_none_is_refused_without_a_word_of_it(tmp_path: Path, url: str) -> None:
    config = tmp_path / "ister.toml"
    config.write_text(f'[storage]\ntimelines = "{url}"\n')

    for told in (
        serve(tmp_path, "--timelines", url),
        serve(tmp_path, ISTER_TIMELINES=url),
        serve(tmp_path, "--config", str(config)),
    ):
        assert "postgresql://" in told
        assert "hidden" not in told


def test_a_missing_library_is_told_with_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError")
    told = serve(tmp_path, "--timelines", "postgresql://localhost/ister", PYTHONPATH=str(tmp_path))

    assert "pip install 'ister[postgres]'" in told


async def test_a_password_may_come_from_the_environment(
    server: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    one = BrokerProcess(tmp_path, ["--timelines", database.replace(f"{USER}:{PASSWORD}", USER)])
    one.start()
    try:
        async with ister.connect(one.url) as client:
            await client.create_topic(TOPIC, kind="timeline")
            put = await client.timeline(TOPIC).put(b"x", id="m")
    finally:
        one.kill()

    assert put.version > 0


def test_timelines_in_the_data_folder_that_are_not_used_are_told(
    database: str, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "data" / FILE_NAME)
    store.create_topic("/default/old", "timeline", b"")
    store.close()
    one = BrokerProcess(tmp_path, ["--timelines", database])
    one.start()
    one.stop()

    assert "timelines_unused" in one.log_text()


async def test_a_database_of_another_data_folder_is_refused_when_names_are_taken_twice(
    own_broker: BrokerProcess, start_broker: StartBroker, database: str
) -> None:
    other = start_broker()
    for broker, kind in ((own_broker, "timeline"), (other, "stream")):
        async with ister.connect(broker.url) as client:
            await client.create_topic(TOPIC, kind=kind)
        await asyncio.to_thread(broker.stop)

    told = serve(other.folder, "--timelines", database)
    assert f"--timelines: '{TOPIC}' is a stream in" in told
    assert "use the one that belongs to this folder" in told
