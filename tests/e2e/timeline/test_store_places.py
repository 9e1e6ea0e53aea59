"""Lone changes are made by the broker itself, many by the process beside it; nothing gets lost."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.timeline.test_store_process import children_of

import ister
from ister.errors import StorageFailedError

pytestmark = pytest.mark.e2e

TOPIC = "/default/reminders"
WAIT_S = 30.0
FILE = "timelines.db"


def has_file(pid: int) -> bool:
    """Return whether a process has the timelines open."""
    places = Path(f"/proc/{pid}/fd")
    links = []
    for place in places.iterdir():
        try:
            links.append(place.readlink())
        except FileNotFoundError:
            continue  # Closed since.
    return any(link.name == FILE for link in links)


async def put_until_here(
    broker: BrokerProcess, timeline: ister.Timeline, told: list[str], prefix: str
) -> None:
    """Put messages one by one until the broker itself has the file."""
    async with asyncio.timeout(WAIT_S):
        while not has_file(broker.pid):
            name = f"{prefix}-{len(told)}"
            await timeline.put(b"x", after=3_600.0, id=name)
            told.append(name)


async def names_of(timeline: ister.Timeline) -> set[str]:
    return {message.id async for message in timeline.list()}


async def test_what_the_broker_itself_has_acknowledged_outlives_kill_9(
    broker: BrokerProcess,
) -> None:
    told: list[str] = []
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        await put_until_here(broker, timeline, told, "m")
        for number in range(200):
            await timeline.put(b"x", after=3_600.0, id=f"here-{number}")
            told.append(f"here-{number}")
        broker.kill()
        broker.restart()

        assert await names_of(timeline) == set(told)


async def test_the_file_goes_back_and_forth_and_one_process_at_a_time_has_it(
    broker: BrokerProcess,
) -> None:
    told: list[str] = []
    done: list[str] = []
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)

        async def finish() -> None:
            async with timeline.consume("worker") as leases:
                async for lease in leases:
                    await lease.done()
                    done.append(lease.id)
                    if len(done) == 2:
                        return

        working = asyncio.create_task(finish())
        for turn in range(2):
            await put_until_here(broker, timeline, told, f"lone-{turn}")
            [keeper] = children_of(broker)
            assert not has_file(keeper)

            names = [f"many-{turn}-{number}" for number in range(500)]
            results = await timeline.put_many(
                [(b"x", timedelta(seconds=3_600.0), name) for name in names]
            )
            assert not [one for one in results if isinstance(one, ister.IsterError)]
            told += names
            assert has_file(keeper)
            assert not has_file(broker.pid)
            await timeline.put(b"x", id=f"due-{turn}")

        await asyncio.wait_for(working, WAIT_S)

        assert await names_of(timeline) == set(told)
    assert sorted(done) == ["due-0", "due-1"]
    assert broker.stop() == 0


async def test_a_file_that_is_gone_is_not_made_anew_by_the_broker(broker: BrokerProcess) -> None:
    told: list[str] = []
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        await put_until_here(broker, timeline, told, "m")
        data = broker.folder / "data"
        moved = [(path, path.with_name(f"away-{path.name}")) for path in data.glob(f"{FILE}*")]
        for path, away in moved:
            path.rename(away)

        # It is on the disk, in the log that was moved away with the rest.
        await timeline.put(b"x", after=3_600.0, id="logged")
        told.append("logged")
        with pytest.raises(StorageFailedError, match="is gone: put it back"):
            await timeline.count()
        with pytest.raises(StorageFailedError, match="is gone: put it back"):
            await timeline.put(b"x", after=3_600.0, id="not")
        assert not (data / FILE).exists()
        for path, away in moved:
            away.rename(path)

        assert await names_of(timeline) == set(told)
