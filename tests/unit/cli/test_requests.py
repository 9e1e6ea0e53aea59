"""`ister request`, over a real broker in a thread."""

import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

import ister
from ister.base.errors import RequestTimeoutError
from ister.cli.app import make_app
from ister.testing import ThreadedBroker

TOPIC = "/default/price"
WAIT_S = 30.0


@pytest.fixture
def client() -> Iterator[ister.sync.Client]:
    with ThreadedBroker() as broker, ister.sync.connect(broker.url) as client:
        yield client


def request(client: ister.sync.Client, *words: str) -> Result:
    command = ["request", TOPIC, "?", "--url", client.url, *words]
    return CliRunner().invoke(make_app(["request"]), command)


def test_a_request_is_sent_again_as_often_as_asked(client: ister.sync.Client) -> None:
    with client.subscribe(TOPIC, "silent") as sub:
        result = request(client, "--retries", "2", "--timeout", "0.06")

        assert isinstance(result.exception, RequestTimeoutError)
        assert len(sub.fetch(3, timeout=WAIT_S)) == 3


def test_a_hedged_request_takes_the_first_answer(client: ister.sync.Client) -> None:
    second = threading.Semaphore(0)
    count = 0

    def answer(_: ister.Message) -> bytes:
        nonlocal count
        count += 1
        if count == 2:
            second.release()
            return b"second"
        second.acquire(timeout=WAIT_S)
        return b"first"

    with client.service(TOPIC, answer, concurrency=2) as service:
        running = threading.Thread(target=service.run)
        running.start()
        result = request(client, "--hedge-after", "0.001", "--timeout", str(WAIT_S))
    running.join(WAIT_S)

    assert result.exit_code == 0
    assert count == 2
