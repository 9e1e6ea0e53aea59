"""The one way in: what is asked for is counted, checked and logged."""

import pytest
from structlog.testing import capture_logs
from tests.unit.server.http.caller import Caller as HttpCaller

from ister.base.errors import DeniedError, ForeignSiteError, TopicNotFoundError
from ister.operations import CreateTopic, DescribeTopic, ListTopics, PublishMessage, Right
from ister.server.http import App
from ister.server.native import NativeDoor
from ister.server.operations import Caller, Dispatcher, Policy
from ister.testing import MemoryBroker

TOPIC = "/default/orders"
SHOP = Caller("http", "shop", "10.0.0.1:5000")


class Readers(Policy):
    """Lets everybody look, and nobody do anything else."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Right, str]] = []

    def check(self, caller: Caller, right: Right, resource: str) -> None:
        self.asked.append((caller.name, right, resource))
        if right is not Right.LOOKUP:
            raise ForeignSiteError("origin", "nowhere")


async def test_an_operation_is_counted_by_name_and_door(dispatcher: Dispatcher) -> None:
    await dispatcher.run(ListTopics(), SHOP)
    await dispatcher.run(ListTopics(), SHOP)
    with pytest.raises(TopicNotFoundError):
        await dispatcher.run(DescribeTopic(TOPIC), Caller("native"))

    assert dispatcher.counts == {("list_topics", "http"): 2, ("describe_topic", "native"): 1}


async def test_an_operation_that_manages_something_is_logged(dispatcher: Dispatcher) -> None:
    with capture_logs() as lines:
        await dispatcher.run(CreateTopic(TOPIC, kind="stream"), SHOP)
        await dispatcher.run(PublishMessage(TOPIC, b"0"), SHOP)
        await dispatcher.run(DescribeTopic(TOPIC), SHOP)

    assert lines == [
        {
            "event": "operation",
            "log_level": "debug",
            "operation": "create_topic",
            "resources": (TOPIC,),
            "door": "http",
            "caller": "shop",
            "address": "10.0.0.1:5000",
        }
    ]


async def test_what_a_policy_denies_is_not_done(memory: MemoryBroker) -> None:
    policy = Readers()
    dispatcher = Dispatcher(memory.engine, policy=policy)

    with pytest.raises(DeniedError):
        await dispatcher.run(CreateTopic(TOPIC), SHOP)

    assert (await dispatcher.run(ListTopics(), SHOP)).rows == []
    assert policy.asked == [("shop", Right.MANAGE, TOPIC), ("shop", Right.LOOKUP, "")]


async def test_every_door_asks_the_policy(memory: MemoryBroker) -> None:
    policy = Readers()
    memory._running().door.dispatcher = Dispatcher(memory.engine, policy=policy)
    dispatcher = Dispatcher(memory.engine, policy=policy)
    call = HttpCaller(App(memory.engine, NativeDoor(memory.engine), dispatcher))

    async with memory.connect() as client:
        with pytest.raises(DeniedError):
            await client.create_topic(TOPIC)
        with pytest.raises(DeniedError):
            await client.publish(TOPIC, b"0")
        with pytest.raises(DeniedError):
            await client.delete_topic(TOPIC)
        assert await client.topics() == []
    answer = await call("PUT", "/api/v1/namespaces/default/topics/orders", {"kind": "live"})

    assert answer.status == 403
    assert [(right, what) for _, right, what in policy.asked] == [
        (Right.MANAGE, TOPIC),
        (Right.PRODUCE, TOPIC),
        (Right.MANAGE, TOPIC),
        (Right.LOOKUP, ""),
        (Right.MANAGE, TOPIC),
    ]
