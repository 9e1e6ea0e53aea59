"""The running broker without a network: owns state, asks the rules, acts."""

from ister.broker.attachments import Attachment, SubscribeOptions
from ister.broker.broker import Broker, ConnectionCounts, Producer
from ister.broker.commits import CommitFigures
from ister.broker.consumer import Consumer, Sink
from ister.broker.deadletters import default_dead_letter_topic
from ister.broker.delayed import DelayedBatch
from ister.broker.guarding import Check, Guard, GuardOf
from ister.broker.ledger import Budgets, Ledger
from ister.broker.locating import Located, Page, locate
from ister.broker.opening import open_vault
from ister.broker.reader import Reader, ReaderSink, open_reader
from ister.broker.relocating import Relocated, relocate
from ister.broker.replies import ReplySink
from ister.broker.salvaging import SalvagedStreams, carry_out, plan_salvage
from ister.broker.series import Published
from ister.broker.spool import Spool
from ister.broker.staging import Spooling, Stage
from ister.broker.stopped import StoppedLog
from ister.broker.stream import StreamTopic
from ister.broker.subscription import Subscription
from ister.broker.tail import TailBudget
from ister.broker.timelines import (
    Redriven,
    RedrivePage,
    Reject,
    StoreWorker,
    TimelineConsumer,
    Timelines,
    TimelineSink,
    WithStore,
    finish_leases,
)
from ister.broker.topic import Topic
from ister.broker.transactions import Transaction, check_commit
from ister.broker.turns import Turns
from ister.broker.vault import Vault, Workers
from ister.broker.watching import Head, Watch
from ister.broker.workers import InlineWorker, ThreadWorker, Worker

__all__ = [
    "Attachment",
    "Broker",
    "Budgets",
    "Check",
    "CommitFigures",
    "ConnectionCounts",
    "Consumer",
    "DelayedBatch",
    "Guard",
    "GuardOf",
    "Head",
    "InlineWorker",
    "Ledger",
    "Located",
    "Page",
    "Producer",
    "Published",
    "Reader",
    "ReaderSink",
    "RedrivePage",
    "Redriven",
    "Reject",
    "Relocated",
    "ReplySink",
    "SalvagedStreams",
    "Sink",
    "Spool",
    "Spooling",
    "Stage",
    "StoppedLog",
    "StoreWorker",
    "StreamTopic",
    "SubscribeOptions",
    "Subscription",
    "TailBudget",
    "ThreadWorker",
    "TimelineConsumer",
    "TimelineSink",
    "Timelines",
    "Topic",
    "Transaction",
    "Turns",
    "Vault",
    "Watch",
    "WithStore",
    "Worker",
    "Workers",
    "carry_out",
    "check_commit",
    "default_dead_letter_topic",
    "finish_leases",
    "locate",
    "open_reader",
    "open_vault",
    "plan_salvage",
    "relocate",
]
