"""Programs of a new user, in small: each in `examples/`, run as it stands."""

import json
import re
import subprocess
import urllib.request
from typing import Any

import pytest
from examples.test_till import test_sales_of_all_threads_are_added_up_once  # noqa: F401 - it runs
from tests.e2e.conftest import BrokerProcess, free_port
from tests.e2e.programs.conftest import (
    EXAMPLES,
    WAIT_S,
    RunProgram,
    StartProgram,
    environment,
)

from ister import sync

pytestmark = pytest.mark.e2e

ORDERS = 300
# A worker is killed when so many orders have ended, every other time the broker as well.
KILLS_AT = (20, 80, 140, 200)
# Timeouts of a service with a slow replica, in percent.
TIMEOUTS_MAX = 2


def test_a_job_that_crashes_its_workers_is_set_aside_and_done_when_it_is_sent_back(
    shared_broker: BrokerProcess, run_program: RunProgram
) -> None:
    lines = run_program(shared_broker.url, "job_queue.py")

    crashes, (letter, sent_back, done) = lines[:-3], lines[-3:]
    assert [line.partition(" ")[2] for line in crashes] == ["crashed: 7 is not a job"] * 3
    assert letter == "dead letter: b'job 7' ValueError: 7 is not a job"
    assert sent_back == "sent back: 1"
    assert done == "done: 20 by 3 workers"


def test_a_dashboard_shows_live_topics_and_streams_and_leaves_nothing_behind(
    broker: BrokerProcess, start_program: StartProgram
) -> None:
    program = start_program(broker.url, "dashboard.py", PORT=str(free_port()))
    assert program.stdout is not None
    address = program.stdout.readline().decode().split()[-1]
    with sync.connect(broker.url) as client:
        with urllib.request.urlopen(address, timeout=WAIT_S) as browser:
            # Its head comes when it is subscribed.
            client.publish("shop.live", b"one", key="a")
            client.create_topic("shop.kept", kind="stream")
            client.publish("shop.kept", b"two")
            events = [event_of(browser) for _ in range(2)]
            assert len(client.subscriptions()) == 1
        while client.subscriptions():
            pass
        topics = {row.topic for row in client.topics()}

    assert events == [
        {"topic": "/default/shop.live", "key": "a", "text": "one"},
        {"topic": "/default/shop.kept", "key": None, "text": "two"},
    ]
    assert topics <= {"/default/shop.live", "/default/shop.kept"}


def event_of(browser: Any) -> dict[str, Any]:
    """Return the next event of an answer."""
    data = browser.readline()
    assert browser.readline() == b"\n"
    found: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
    return found


def test_a_saga_ends_each_order_once_while_workers_and_the_broker_are_killed(
    broker: BrokerProcess, start_program: StartProgram, run_program: RunProgram
) -> None:
    workers = [start_program(broker.url, "saga.py", "work") for _ in range(2)]
    with sync.connect(broker.url) as client:
        client.create_topic("saga.done", kind="stream")
        shop = start_program(broker.url, "saga.py", "order", str(ORDERS))
        for number, goal in enumerate(KILLS_AT):
            while client.topics("saga.done")[0].next_offset < goal:
                pass
            workers.pop(0).kill()
            if number % 2:
                broker.kill()
                broker.restart()
            workers.append(start_program(broker.url, "saga.py", "work"))
        ends: list[int] = []
        with client.subscribe("saga.done", "test", start="earliest") as sub:
            while len(ends) < ORDERS:
                ends.append(json.loads(sub.receive(timeout=WAIT_S).payload)["id"])
        _, words = shop.communicate(timeout=WAIT_S)
    report = run_program(broker.url, "saga.py", "report")

    assert shop.returncode == 0, words
    assert sorted(ends) == list(range(ORDERS))
    assert report == [
        f"paid {[number for number in range(ORDERS) if number % 10 != 3]}",
        f"released {[number for number in range(ORDERS) if number % 10 == 3]}",
    ]


def test_a_bank_overdraws_no_account_and_knows_its_past(
    shared_broker: BrokerProcess, run_program: RunProgram
) -> None:
    assert run_program(shared_broker.url, "bank.py") == [
        "withdrawn: 6",
        "refused: 4",
        "now: {'alice': 10, 'bob': 20}",
        "in the beginning: {'alice': 100}",
    ]


def test_a_slow_replica_costs_few_requests(
    shared_broker: BrokerProcess, run_program: RunProgram
) -> None:
    [line] = run_program(shared_broker.url, "pricing.py")

    answered, asked = map(int, re.findall(r"\d+", line))
    assert asked == 300
    assert (asked - answered) * 100 <= asked * TIMEOUTS_MAX


def test_threads_sell_and_the_books_add_up(
    shared_broker: BrokerProcess, run_program: RunProgram
) -> None:
    assert run_program(shared_broker.url, "till.py") == ["taken in: 4950"]


def test_an_operator_sets_up_changes_and_restores_a_broker_with_tls_and_tokens() -> None:
    done = subprocess.run(
        ["bash", str(EXAMPLES / "operations.sh")],
        env=environment("ister://127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    parts = re.split(r"^== .*\n", done.stdout, flags=re.MULTILINE)
    _, strangers, behind, changes, tokens, restored = parts
    assert strangers.split("\n")[:-1] == ["exit code 64", "exit code 77"]
    assert "certificate is not to be trusted" in done.stderr
    assert "no token was given" in done.stderr
    # Lag, in flight.
    assert re.search(r"^billing +/default/orders +3 +0 ", behind, re.MULTILINE)
    assert re.search(r"^ack timeout +5.0m\nmax deliveries +3$", changes, re.MULTILINE)
    assert "/default/orders" in tokens
    assert tokens.endswith("exit code 77\n")
    # What was published and acknowledged before the backup, and its settings: nothing after it.
    assert re.search(r"^/default/orders +0 +8 +", restored, re.MULTILINE)
    assert re.search(r"^fsync +limits +30.0d ", restored, re.MULTILINE)
    assert restored.endswith("\n3\n4\n5\n6\n7\n8\n")
