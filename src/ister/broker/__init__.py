"""The running broker without a network: owns state, asks the rules, acts."""

from ister.broker.broker import Broker, Producer
from ister.broker.catalog.memberships import Membership, SubscribeOptions
from ister.broker.connections import ConnectionCounts
from ister.broker.consumers.consumer import Consumer, Sink
from ister.broker.delayed import DelayedBatch
from ister.broker.durable.dead_letters import default_dead_letter_topic
from ister.broker.live.replies import ReplySink
from ister.broker.live.subscription import Subscription
from ister.broker.live.topic import Topic
from ister.broker.scheduling.turns import Turns
from ister.broker.scheduling.workers import InlineWorker, ThreadWorker, Worker
from ister.broker.schema_checks import Check, Guard, GuardOf
from ister.broker.state.state import Budgets, State
from ister.broker.storage.commit_figures import CommitFigures
from ister.broker.storage.opening import open_storage
from ister.broker.storage.relocation import Relocated, relocate
from ister.broker.storage.salvage import SalvagedStreams, carry_out, plan_salvage
from ister.broker.storage.stopped_log import StoppedLog
from ister.broker.storage.storage import Storage, Workers
from ister.broker.streams.reader import Reader, ReaderSink, open_reader
from ister.broker.streams.recent import RecentBudget
from ister.broker.streams.segments import Located, Page, locate
from ister.broker.streams.stream import StreamTopic
from ister.broker.streams.watches import Head, Watch
from ister.broker.timelines import (
    Redriven,
    RedrivePage,
    Reject,
    StoreWorker,
    TimelineConsumer,
    Timelines,
    TimelineSink,
    WithStore,
)
from ister.broker.transactions.series import Published
from ister.broker.transactions.spool import Spool
from ister.broker.transactions.stages import Spooling, Stage
from ister.broker.transactions.transactions import Transaction, check_commit

__all__ = [
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
    "Located",
    "Membership",
    "Page",
    "Producer",
    "Published",
    "Reader",
    "ReaderSink",
    "RecentBudget",
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
    "State",
    "StoppedLog",
    "Storage",
    "StoreWorker",
    "StreamTopic",
    "SubscribeOptions",
    "Subscription",
    "ThreadWorker",
    "TimelineConsumer",
    "TimelineSink",
    "Timelines",
    "Topic",
    "Transaction",
    "Turns",
    "Watch",
    "WithStore",
    "Worker",
    "Workers",
    "carry_out",
    "check_commit",
    "default_dead_letter_topic",
    "locate",
    "open_reader",
    "open_storage",
    "plan_salvage",
    "relocate",
]
