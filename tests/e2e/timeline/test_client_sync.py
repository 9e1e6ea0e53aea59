"""Timelines of the blocking client: the same names, from threads."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from ister import sync
from ister.base.errors import (
    ClosedError,
    IsterError,
    MessageNotFoundError,
    RequestTimeoutError,
)

pytestmark = pytest.mark.e2e

TOPIC = "/default/reminders"


def test_a_timeline_is_used_from_a_thread(ister_url: str) -> None:
    with sync.connect(ister_url) as client:
        client.create_topic(TOPIC, kind="timeline", max_leases=3)
        timeline = client.timeline(TOPIC, group="shop")
        put = timeline.put(b"x", at=datetime.now(UTC) + timedelta(hours=1), id="a")
        timeline.move("a", after=3600.0, version=put.version)
        timeline.update("a", b"y", attributes={"k": "v"})

        assert timeline.get("a").payload == b"y"
        assert timeline.count(end=timedelta(hours=2)) == 1
        assert [message.id for message in timeline.list()] == ["a"]
        timeline.delete("a")
        with pytest.raises(MessageNotFoundError):
            timeline.get("a")


def test_a_transaction_is_all_or_nothing(ister_url: str) -> None:
    with sync.connect(ister_url) as client:
        client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        with timeline.transaction() as tx:
            first = tx.put(b"x", after=3600.0)
            tx.put(b"x", after=3600.0, id="b")
        assert [result.id for result in tx.results] == [first, "b"]

        refused = timeline.transaction()
        refused.move("b", after=7200.0)
        refused.update("b", b"z")
        refused.delete("none")
        with pytest.raises(MessageNotFoundError):
            refused.commit()
        assert timeline.get("b").payload == b"x"


def test_leases_are_finished_extended_and_released(ister_url: str) -> None:
    with sync.connect(ister_url) as client:
        client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        results = timeline.put_many([(b"x", None, name) for name in ("a", "b")])
        assert not any(isinstance(result, IsterError) for result in results)
        with timeline.consume("w") as leases:
            first, second = leases.receive(), leases.receive()
            first.extend(60.0)
            assert first.until > first.due + timedelta(seconds=60)
            first.done()
            second.release()
            for lease in leases:
                assert (lease.id, lease.attempt) == ("b", 2)
                lease.done()
                break
            with pytest.raises(RequestTimeoutError):
                leases.receive(timeout=0.01)
            assert (leases.lateness.count, leases.waiting_count) == (2, 0)
        assert timeline.count() == 0
        with pytest.raises(ClosedError):
            leases.receive(timeout=1.0)
        assert list(leases) == []


def test_threads_share_a_consumer(ister_url: str) -> None:
    count = 200
    with sync.connect(ister_url) as client:
        client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        timeline.put_many([(b"x", None, f"m-{n}") for n in range(count)])
        with timeline.consume("w") as leases, ThreadPoolExecutor(4) as pool:

            def work(_: int) -> str:
                lease = leases.receive(timeout=30.0)
                lease.done()
                return lease.id

            seen = list(pool.map(work, range(count)))

        assert sorted(seen) == sorted(f"m-{n}" for n in range(count))
