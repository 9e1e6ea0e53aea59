"""The client for asyncio."""

from ister.client.aio.client import Client
from ister.client.aio.connecting import connect
from ister.client.aio.connection.environment import token_from_environment
from ister.client.aio.connection.futures import BatchFuture, SendFuture
from ister.client.aio.connection.sockets import Connector, connect_socket, token_file
from ister.client.aio.producer import Producer
from ister.client.aio.reader import Reader
from ister.client.aio.schemas import Registration, Schemas
from ister.client.aio.service import Handler, Health, ServiceInstance, ServiceReport, ServiceStats
from ister.client.aio.staging import Stage
from ister.client.aio.subscription import Message, Subscription
from ister.client.aio.timelines.consumer import TimelineConsumer, TimelineLease
from ister.client.aio.timelines.cron import CronRule
from ister.client.aio.timelines.timeline import Timeline, TimelineMessage, TimelinePut
from ister.client.aio.timelines.transaction import MessageVersion, TimelineTransaction
from ister.client.aio.transaction import Transaction
from ister.client.aio.view import View, ViewChange, ViewEntry, entries_of

__all__ = [
    "BatchFuture",
    "Client",
    "Connector",
    "CronRule",
    "Handler",
    "Health",
    "Message",
    "MessageVersion",
    "Producer",
    "Reader",
    "Registration",
    "Schemas",
    "SendFuture",
    "ServiceInstance",
    "ServiceReport",
    "ServiceStats",
    "Stage",
    "Subscription",
    "Timeline",
    "TimelineConsumer",
    "TimelineLease",
    "TimelineMessage",
    "TimelinePut",
    "TimelineTransaction",
    "Transaction",
    "View",
    "ViewChange",
    "ViewEntry",
    "connect",
    "connect_socket",
    "entries_of",
    "token_file",
    "token_from_environment",
]
