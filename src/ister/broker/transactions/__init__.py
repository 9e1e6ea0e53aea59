"""Messages that are seen together: transactions, stages, and series of publishes."""

from ister.broker.transactions.series import Published, SeriesPublisher
from ister.broker.transactions.spool import Spool
from ister.broker.transactions.stages import Spooling, Stage, Staging
from ister.broker.transactions.transactions import (
    Offsets,
    Transaction,
    TransactionAck,
    Transactions,
    check_commit,
)

__all__ = [
    "Offsets",
    "Published",
    "SeriesPublisher",
    "Spool",
    "Spooling",
    "Stage",
    "Staging",
    "Transaction",
    "TransactionAck",
    "Transactions",
    "check_commit",
]
