"""The running broker without a network: owns state, asks the rules, acts."""

from ister.broker.broker import Broker, Producer
from ister.broker.catalog import Membership, SubscribeOptions
from ister.broker.connections import ConnectionCounts
from ister.broker.consumers import Consumer, Sink, SourceTopic
from ister.broker.delayed import DelayedBatch
from ister.broker.durable import default_dead_letter_topic
from ister.broker.live import ReplySink, Subscription, Topic
from ister.broker.scheduling import InlineWorker, ThreadWorker, Turns, Worker
from ister.broker.schema_checks import LongCheck, SchemaCheck, SchemaCheckOf
from ister.broker.state import Budgets, State
from ister.broker.storage import (
    CommitFigures,
    Relocated,
    SalvagedStreams,
    StoppedLog,
    Storage,
    Workers,
    Write,
    carry_out,
    open_storage,
    plan_salvage,
    relocate,
)
from ister.broker.streams import (
    Head,
    Located,
    Page,
    Reader,
    ReaderSink,
    RecentBudget,
    StreamTopic,
    Watch,
    locate,
    open_reader,
)
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
from ister.broker.transactions import Published, Spool, Spooling, Stage, Transaction, check_commit

__all__ = [
    "Broker",
    "Budgets",
    "CommitFigures",
    "ConnectionCounts",
    "Consumer",
    "DelayedBatch",
    "Head",
    "InlineWorker",
    "Located",
    "LongCheck",
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
    "SchemaCheck",
    "SchemaCheckOf",
    "Sink",
    "SourceTopic",
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
    "Write",
    "carry_out",
    "check_commit",
    "default_dead_letter_topic",
    "finish_leases",
    "locate",
    "open_reader",
    "open_storage",
    "plan_salvage",
    "relocate",
]
