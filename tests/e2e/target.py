"""A broker process under attack, and the healthy client that must not notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import BrokerProcess
from tests.e2e.raw import WAIT_S, RawClient, memory_bounded, wait_until

from ister import sync
from ister.base.errors import IsterError
from ister.base.limits import MIB

TOPIC = "/default/healthy"
# An attack of a few connections with small frames; the interpreter's own churn is most of it.
GROWTH_BYTES_MAX = 48 * MIB


class Target:
    """A broker under attack, with its healthy client."""

    def __init__(self, broker: BrokerProcess, client: sync.Client) -> None:
        self.broker = broker
        self.client = client
        self.producer = client.producer(TOPIC)
        self.sub = client.subscribe(TOPIC, "healthy")
        self.producer.open()
        self.sub.open()
        self._sent = 0

    def check(self) -> None:
        """The healthy client is served, on the connection it has always had."""
        self._sent += 1
        payload = b"%d" % self._sent
        self.producer.send(payload)
        assert self.sub.receive(WAIT_S).payload == payload

    def check_alone(self) -> None:
        """Nothing is left of anybody else."""
        wait_until(lambda: self.client.broker().connections == 1, "other connections are gone")
        # The consumers of a lost connection leave over several turns of the event loop.
        wait_until(self._is_alone, "other subscriptions are gone")
        assert "internal_error" not in self.broker.log_text()

    def _is_alone(self) -> bool:
        report = self.client.broker()
        return (report.subscriptions, report.queued_bytes) == (1, 0)

    def connect(self) -> RawClient:
        return RawClient(self.broker)

    def greeted(self) -> RawClient:
        raw = self.connect()
        raw.greet()
        return raw


@contextmanager
def attacked(target: Target, growth_bytes_max: int = GROWTH_BYTES_MAX) -> Iterator[None]:
    """Check that the target is well during what happens in the block, and afterwards."""
    target.check()
    with memory_bounded(target.broker.pid, growth_bytes_max):
        yield
        target.check()
        target.check_alone()


def assert_refused(raw: RawClient, kind: type[IsterError]) -> IsterError:
    """The broker says why and closes the connection."""
    with raw:
        error = raw.farewell()
    assert isinstance(error, kind), error
    return error


@contextmanager
def open_target(folder: Path, *args: str) -> Iterator[Target]:
    """Run a broker with its healthy client."""
    broker = BrokerProcess(folder, args)
    broker.start()
    try:
        with sync.connect(broker.url) as client:
            yield Target(broker, client)
    finally:
        broker.kill()
