"""The commands of the schema registry, over a real session of the native door."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.base.errors import (
    BadRequestError,
    BrokenError,
    InternalError,
    IsterError,
    LimitReachedError,
    TopicNotFoundError,
)
from ister.client import Schema
from ister.server.native import NativeDoor
from ister.server.native.door import CALLS_BYTES_MAX, CALLS_MAX
from ister.testing import MemoryBroker
from ister.wire import (
    BindSchema,
    CheckSchema,
    Command,
    DeleteSchema,
    DescribeSchema,
    Done,
    GetSchema,
    GetSchemaBinding,
    ListSchemas,
    ListSchemaVersions,
    RegisterSchema,
    SchemaFound,
    SetSchemaMode,
    UnbindSchema,
)


def door_of(broker: MemoryBroker) -> NativeDoor:
    return broker._running().door


async def test_a_broker_without_a_registry_says_so() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        door_of(broker).dispatcher.node.known_registry = None

        for work in (
            client.schemas.register("orders", Schema("string")),
            client.schemas.list(),
            client.schemas.binding("/default/orders"),
        ):
            with pytest.raises(BadRequestError, match="keeps no schemas"):
                await work


@pytest.mark.parametrize("command", [GetSchema(), GetSchema(subject="orders", schema_id=1)])
async def test_a_schema_is_named_in_one_way(command: GetSchema) -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.schemas.register("orders", Schema("string"))

        with pytest.raises(BadRequestError):
            await client.link.call(command, SchemaFound)
        found = await client.link.call(GetSchema(schema_id=1), SchemaFound)
        assert found.schema.subject == "orders"


async def test_a_thousand_producers_may_register_at_once() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        registered = await asyncio.gather(
            *(client.schemas.register(f"s-{n % 10}", Schema("string")) for n in range(1_000))
        )

        assert sum(done.is_new for done in registered) == 10


async def test_calls_that_wait_are_bounded_in_number_and_bytes() -> None:
    async with MemoryBroker() as broker:
        door = door_of(broker)
        answers: list[Any] = []
        gate = asyncio.Event()

        async def work() -> Command:
            await gate.wait()
            return Done()

        door.run(work(), answers.append, CALLS_BYTES_MAX)
        with pytest.raises(LimitReachedError, match="calls_bytes_max"):
            door.run(work(), answers.append, 1)
        for _ in range(CALLS_MAX - 1):
            door.run(work(), answers.append)
        with pytest.raises(LimitReachedError, match="calls_max"):
            door.run(work(), answers.append)
        gate.set()
        await asyncio.gather(*door._calls)

        assert answers == [Done()] * CALLS_MAX
        await asyncio.sleep(0)
        door.run(work(), answers.append, CALLS_BYTES_MAX)
        await asyncio.gather(*door._calls)
        assert len(answers) == CALLS_MAX + 1


async def test_a_bug_is_answered_and_ends_nothing() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        answers: list[Any] = []

        async def work() -> Command:
            raise ZeroDivisionError

        door_of(broker).run(work(), answers.append)
        await asyncio.gather(*door_of(broker)._calls)

        assert isinstance(answers[0], InternalError)
        assert "default" in await client.namespaces()


async def test_an_answer_to_a_client_that_left_is_dropped() -> None:
    async with MemoryBroker() as broker:
        async with broker.connect() as client:
            working = asyncio.ensure_future(client.schemas.register("orders", Schema("string")))
            await asyncio.sleep(0)
            broker.disconnect_all()
            assert (await working).version == 1
        assert not door_of(broker)._calls


# Few enough names that commands meet what others made, and some that nobody may use.
subjects = st.sampled_from(["a", "b", "", "a b", "x" * 300, "\x00"])
topics = st.sampled_from(["/default/a", "/default/a-part-0", "/other/a", "a", "", "/default/*"])
numbers = st.sampled_from([0, 1, 2, -1, 2**32, 2**63 - 1, -(2**63)])
types = st.sampled_from(["string", "json_schema", "avro", "protobuf", "bytes", "", "JSON", "x"])
modes = st.sampled_from(["", "none", "backward", "full_transitive", "x"])
texts = st.text(max_size=20)
definitions = st.sampled_from(
    [b"", b"{}", b'{"type":"string"}', b'"int"', b"\xff", b"[" * 1_000, b'{"$ref":"#"}']
) | st.binary(max_size=40)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        RegisterSchema,
        subject=subjects,
        type=types,
        definition=definitions,
        description=texts,
        created_by=texts,
        tags=st.lists(texts, max_size=3),
        mode=modes,
    ),
    st.builds(CheckSchema, subject=subjects, type=types, definition=definitions, mode=modes),
    st.builds(GetSchema, subject=subjects, schema_id=numbers, version=numbers),
    st.builds(ListSchemaVersions, subject=subjects, after=numbers),
    st.builds(ListSchemas, after=subjects, limit=numbers),
    st.builds(DescribeSchema, subject=subjects),
    st.builds(DeleteSchema, subject=subjects, version=numbers),
    st.builds(SetSchemaMode, subject=subjects, mode=modes),
    st.builds(
        BindSchema,
        topic=topics,
        subject=subjects,
        policy=st.sampled_from(["none", "warn", "enforce", "x"]),
        validate_payload=st.booleans(),
        version=numbers,
        min_version=numbers,
    ),
    st.builds(UnbindSchema, topic=topics),
    st.builds(GetSchemaBinding, topic=topics),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(commands, min_size=1, max_size=20))
def test_every_command_gets_an_answer_or_an_error_that_is_no_bug(said: list[Command]) -> None:
    anything: Any = object

    async def play() -> None:
        async with MemoryBroker() as broker, broker.connect() as client:
            answers = await asyncio.gather(
                *(client.link.call(one, anything) for one in said),
                return_exceptions=True,
            )
            for answer in answers:
                if isinstance(answer, BaseException):
                    assert isinstance(answer, IsterError)
                    assert not isinstance(answer, BrokenError)
            assert "default" in await client.namespaces()

    asyncio.run(play())


async def test_a_topic_that_is_deleted_is_not_bound_any_more() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("/default/orders", kind="stream")
        await client.schemas.register("orders", Schema("string"))
        await client.schemas.bind("/default/orders", "orders")
        await client.delete_topic("/default/orders")

        assert door_of(broker).dispatcher.node.registry.bindings() == []
        await client.schemas.delete("orders")


async def test_a_topic_that_is_not_there_stays_bound_when_it_cannot_be_deleted() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.schemas.register("orders", Schema("string"))
        await client.schemas.bind("/default/orders", "orders")
        with pytest.raises(TopicNotFoundError):
            await client.delete_topic("/default/orders")

        assert (await client.schemas.binding("/default/orders")).subject == "orders"
