"""A broker that is killed and restarted twenty times keeps every promise it has made.

One storm for all tests here: what clients were told is compared with what is stored in the end.
`STORM_SEED=n` has the storm draw the same numbers again; when exactly the broker dies is chance.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.checker import (
    Anomaly,
    History,
    Stored,
    check_derived,
    check_exclusive,
    check_log,
    check_ordered_keys,
    check_subscription,
)
from tests.e2e.conftest import BrokerProcess
from tests.e2e.storm import Storm

from ister.client import DurabilityName

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

KILLS = int(os.environ.get("STORM_KILLS", "20"))

ORDERS = "/default/orders"  # on the disk before it is acknowledged
CLICKS = "/default/clicks"  # with the operating system, which survives a kill
TASKS = "/default/tasks"
RESULTS = "/default/results"
AUDIT = "/default/audit"

SUBSCRIPTIONS = {
    ORDERS: ["one", "many", "keyed"],
    CLICKS: ["one"],
    TASKS: ["workers"],
}
# Small files and little memory: consumers that lag read what was written to many files.
OPTIONS = ["--segment-size", "1MiB", "--stream-memory", "1MiB"]


@dataclass(frozen=True)
class Outcome:
    """What the storm has left."""

    storm: Storm
    logs: dict[str, list[Stored]]
    # The same, after one more kill.
    logs_again: dict[str, list[Stored]]
    # Deliveries after everything was acknowledged and the broker killed once more.
    late: dict[str, list[int]]

    def history(self, topic: str) -> History:
        return self.storm.histories[topic]

    def judge(self, anomalies: list[Anomaly]) -> None:
        """Fail with the first anomalies, and with how to have this storm again."""
        told = "\n".join(f"  {anomaly}" for anomaly in anomalies[:20])
        assert not anomalies, (
            f"{len(anomalies)} anomalies after {self.storm.kills} kills "
            f"(STORM_SEED={self.storm.seed}, data in {self.storm.broker.folder}):\n{told}"
        )


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Run the storm."""
    seed = int(os.environ.get("STORM_SEED", "0")) or random.randrange(1, 2**32)
    folder = tmp_path_factory.mktemp("storm")
    broker = start_broker(folder)
    try:
        yield asyncio.run(run_storm(broker, seed))
    finally:
        if broker.process is not None:
            broker.kill()


def start_broker(folder: Path) -> BrokerProcess:
    broker = BrokerProcess(folder, OPTIONS)
    broker.start()
    return broker


async def run_storm(broker: BrokerProcess, seed: int) -> Outcome:
    storm = Storm(broker, seed)
    topics = [ORDERS, CLICKS, TASKS, RESULTS, AUDIT]
    async with storm.client() as client:
        for topic in topics:
            durability: DurabilityName = "os" if topic == CLICKS else "fsync"
            await client.create_topic(topic, kind="stream", durability=durability)
    async with asyncio.TaskGroup() as group:
        producers = [
            group.create_task(one)
            for one in (
                storm.produce(ORDERS, "steady"),
                storm.produce(ORDERS, "other"),
                storm.produce_in_lives(ORDERS, "reborn"),
                storm.produce_impatiently(ORDERS, "impatient"),
                storm.produce(CLICKS, "steady"),
                storm.produce(TASKS, "asker"),
            )
        ]
        group.create_task(storm.consume(ORDERS, "one", "one", type="exclusive"))
        group.create_task(storm.consume(CLICKS, "one", "one", type="exclusive"))
        for number in range(3):
            name = f"c{number}"
            group.create_task(storm.consume(ORDERS, "many", name, type="shared", nacks=True))
            group.create_task(storm.consume(ORDERS, "keyed", name, type="key_shared", ordered=True))
            group.create_task(storm.transform(f"w{number}", TASKS, [RESULTS, AUDIT]))
        follower = group.create_task(storm.follow(ORDERS, "follower"))

        await storm.rage(KILLS)
        storm.calm.set()
        await asyncio.wait(producers)
        await storm.drain(SUBSCRIPTIONS)
        await storm.caught_up(ORDERS, "follower")
        follower.cancel()
    logs = {topic: await storm.read(topic) for topic in topics}
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.restart)
    late = {topic: await late_deliveries(storm, topic) for topic in SUBSCRIPTIONS}
    logs_again = {topic: await storm.read(topic) for topic in topics}
    return Outcome(storm, logs, logs_again, late)


async def late_deliveries(storm: Storm, topic: str) -> list[int]:
    """Return the offsets that still come although everything was acknowledged."""
    found = []
    async with storm.client() as client:
        for report in await client.subscriptions(topic):
            type_ = report.type
            async with client.subscribe(topic, report.subscription, type=type_) as sub:  # type: ignore[arg-type]
                found += [msg.offset for msg in await sub.fetch(100, timeout=0.2)]
    return found


def test_the_storm_was_one(outcome: Outcome) -> None:
    storm = outcome.storm

    assert storm.kills == KILLS
    assert storm.doubts.total() > 0, "no send was left in doubt: the kills were too gentle"
    for topic in (ORDERS, CLICKS, TASKS, RESULTS):
        assert len(outcome.logs[topic]) > 10 * KILLS, topic
    redelivered = [
        offset
        for deliveries in storm.histories[ORDERS].deliveries.values()
        for offset in {one.offset for one in deliveries if one.epoch}
    ]
    assert redelivered, "no consumer was ever attached anew"


@pytest.mark.parametrize("topic", [ORDERS, CLICKS, TASKS])
def test_every_acknowledged_message_is_stored_once_in_order_at_its_offset(
    topic: str, outcome: Outcome
) -> None:
    outcome.judge(check_log(outcome.history(topic), outcome.logs[topic]))


def test_every_send_of_a_patient_producer_was_acknowledged(outcome: Outcome) -> None:
    patient = [
        send
        for topic in (ORDERS, CLICKS, TASKS)
        for send in outcome.history(topic).sends
        if send.producer in ("steady", "other", "asker")
    ]

    doubtful = [send for send in patient if send.outcome.value != "ok"]
    assert doubtful == [], f"STORM_SEED={outcome.storm.seed}: {outcome.storm.doubts}"


@pytest.mark.parametrize(
    ("topic", "name"), [(ORDERS, "one"), (ORDERS, "many"), (ORDERS, "keyed"), (CLICKS, "one")]
)
def test_every_message_came_and_none_again_after_its_acknowledgement_was_confirmed(
    topic: str, name: str, outcome: Outcome
) -> None:
    deliveries = outcome.history(topic).deliveries[name]

    outcome.judge(check_subscription(name, deliveries, outcome.logs[topic]))


@pytest.mark.parametrize("topic", [ORDERS, CLICKS])
def test_an_exclusive_consumer_got_messages_in_order_between_restarts(
    topic: str, outcome: Outcome
) -> None:
    outcome.judge(check_exclusive("one", outcome.history(topic).deliveries["one"]))


def test_an_ordered_consumer_got_no_message_before_the_one_in_front_was_acknowledged(
    outcome: Outcome,
) -> None:
    outcome.judge(check_ordered_keys("keyed", outcome.history(ORDERS).deliveries["keyed"]))


@pytest.mark.parametrize("topic", [RESULTS, AUDIT])
def test_transactions_made_exactly_one_output_of_each_input(topic: str, outcome: Outcome) -> None:
    outputs = [Stored(o, value.partition("@")[0]) for o, value in outcome.logs[topic]]

    outcome.judge(check_derived(outcome.logs[TASKS], outputs, topic))


@pytest.mark.parametrize("topic", [RESULTS, AUDIT])
def test_a_transaction_is_stored_when_it_was_said_so_and_not_when_it_was_refused(
    topic: str, outcome: Outcome
) -> None:
    outcome.judge(check_log(outcome.history(topic), outcome.logs[topic]))


def test_a_transaction_is_in_all_of_its_topics_or_in_none(outcome: Outcome) -> None:
    results, audit = outcome.logs[RESULTS], outcome.logs[AUDIT]

    assert {stored.value for stored in results} == {stored.value for stored in audit}


def test_one_more_kill_changes_nothing(outcome: Outcome) -> None:
    assert outcome.logs_again == outcome.logs
    assert outcome.late == {topic: [] for topic in SUBSCRIPTIONS}
