"""Everything an operator can ask of a broker, in parts. The doors only translate."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from ister.base import BrokerReport
from ister.broker import Broker
from ister.server.admin.messages import Messages
from ister.server.admin.namespaces import Namespaces
from ister.server.admin.reports import BalanceReport, BrokerRow
from ister.server.admin.subscriptions import Subscriptions
from ister.server.admin.topics import Topics

if TYPE_CHECKING:
    from ister.registry import Registry

# The number of a broker that stands alone.
BROKER_ID = 1


class Admin:
    """The admin model of one broker.

    Reads are plain calls; what changes something is a coroutine that returns once the change is
    there for good, or raises with nothing changed.
    """

    def __init__(self, broker: Broker, registry: "Registry | None" = None) -> None:
        self.broker = broker
        self.registry = registry
        self.namespaces = Namespaces(broker)
        self.topics = Topics(broker, registry)
        self.subscriptions = Subscriptions(broker)
        self.messages = Messages(broker)
        # The open doors by name (`native`, `http`, `grpc`, `admin`), as `host:port`.
        self.doors: dict[str, str] = {}
        # What Danube's clients are told to connect to; empty when that is not known.
        self.advertised = ""

    def brokers(self) -> list[BrokerRow]:
        """Return the brokers of the cluster: this one."""
        row = BrokerRow(
            id=BROKER_ID,
            name=self.broker.name,
            version=version("ister"),
            native=self.doors.get("native", ""),
            http=self.doors.get("http", ""),
            grpc=self.doors.get("grpc", ""),
            admin=self.doors.get("admin", ""),
        )
        return [row]

    def report(self) -> BrokerReport:
        """Return the figures of this broker."""
        return self.broker.report()

    def balance(self) -> BalanceReport:
        """Return how evenly the topics are spread: one broker has them all."""
        topics = self.broker.report().topics
        return BalanceReport(topics={BROKER_ID: topics}, mean=float(topics), deviation=0.0)
