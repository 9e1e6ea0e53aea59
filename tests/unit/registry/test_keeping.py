"""What is kept: over restarts, beside another broker, and when the storage fails."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.registry.conftest import Hand
from tests.unit.registry.definitions import OTHER, V1, V2, V3, Contended, Failing, Interrupted

from ister.base.errors import (
    CorruptedError,
    RevisionMismatchError,
    SchemaIncompatibleError,
    SchemaMismatchError,
    SchemaNotFoundError,
    StorageFailedError,
)
from ister.metadata import Delete, MemoryMetadata, Put
from ister.registry import Registry
from ister.registry.subject_store import ATTEMPTS
from ister.schemas import Policy

TOPIC = "/default/orders"


async def test_everything_is_found_again_after_a_restart(
    registry: Registry, metadata: MemoryMetadata, hand: Hand
) -> None:
    await registry.register("orders", "json_schema", V1, tags=["a"], mode="full")
    await registry.register("orders", "json_schema", V2, description="more")
    await registry.register("users", "string", b"")
    await registry.bind(TOPIC, "orders", policy="warn", validate_payload=False, min_version=2)
    again = await Registry.open(metadata, now_ms=hand.now_ms)

    assert again.subjects() == registry.subjects()
    assert again.versions("orders") == registry.versions("orders")
    assert again.bindings() == registry.bindings()
    assert again.get(2) == registry.get(2)
    assert again.find_check(TOPIC) is not None


async def test_nothing_is_written_that_does_not_change_anything(
    registry: Registry, metadata: MemoryMetadata
) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.bind(TOPIC, "orders")
    before = await metadata.list("")
    await registry.register("orders", "json_schema", V1)
    await registry.register("orders", "json_schema", V1, mode="backward")
    await registry.set_mode("orders", "backward")
    await registry.bind(TOPIC, "orders")
    await registry.check("orders", "json_schema", V2)

    assert await metadata.list("") == before


async def test_what_is_left_of_a_deleted_subject_goes_at_the_next_start(
    registry: Registry, metadata: MemoryMetadata, hand: Hand
) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.register("orders", "json_schema", V2)
    await registry.register("users", "string", b"")
    # As a crash in the middle leaves it.
    await metadata.write(Delete("schemas/subjects/orders"))
    again = await Registry.open(metadata, now_ms=hand.now_ms)

    assert [one.subject for one in again.subjects()] == ["users"]
    assert [fact.key for fact in await metadata.list("schemas/versions/")] == [
        "schemas/versions/0000000002/0000000001"
    ]


# Another broker.


@pytest.fixture
async def rival(metadata: MemoryMetadata, hand: Hand) -> Registry:
    """A broker on the same facts, which it has read before anything was written."""
    return await Registry.open(metadata, now_ms=hand.now_ms)


async def test_two_brokers_never_give_an_id_twice(registry: Registry, rival: Registry) -> None:
    ids = []
    for number in range(3):
        ids.append((await registry.register(f"a{number}", "string", b"")).schema_id)
        ids.append((await rival.register(f"b{number}", "string", b"")).schema_id)

    assert ids == [1, 2, 3, 4, 5, 6]


async def test_two_brokers_count_versions_together(registry: Registry, rival: Registry) -> None:
    await registry.register("orders", "json_schema", V1)
    second = await rival.register("orders", "json_schema", V2)
    again = await registry.register("orders", "json_schema", V2)
    third = await registry.register("orders", "json_schema", V3)

    assert (second.schema_id, second.version, second.is_new) == (1, 2, True)
    assert (again.version, again.is_new) == (2, False)
    assert third.version == 3
    assert registry.subject("orders").versions == [1, 2, 3]


async def test_a_definition_must_fit_what_another_broker_registered(
    registry: Registry, rival: Registry
) -> None:
    await registry.register("orders", "json_schema", V1)

    with pytest.raises(SchemaIncompatibleError):
        await rival.register("orders", "json_schema", OTHER)


async def test_a_subject_cannot_be_deleted_that_another_broker_bound(
    registry: Registry, rival: Registry
) -> None:
    await registry.register("orders", "json_schema", V1)
    await rival.register("orders", "json_schema", V1)
    await rival.bind(TOPIC, "orders")

    with pytest.raises(SchemaMismatchError):
        await registry.delete_subject("orders")
    assert registry.binding(TOPIC).subject == "orders"


async def test_a_subject_can_be_deleted_that_another_broker_unbound(
    registry: Registry, rival: Registry
) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.bind(TOPIC, "orders")
    await rival.register("users", "string", b"")
    await rival.bind(TOPIC, "users")
    await registry.delete_subject("orders")

    assert registry.bindings() == rival.bindings()
    await rival.unbind(TOPIC)
    await registry.delete_subject("users")
    assert registry.subjects() == []


async def test_a_topic_cannot_be_bound_to_what_another_broker_deleted(
    registry: Registry, rival: Registry
) -> None:
    await registry.register("orders", "json_schema", V1)
    await rival.register("orders", "json_schema", V1)
    await rival.delete_subject("orders")

    with pytest.raises(SchemaNotFoundError):
        await registry.bind(TOPIC, "orders")
    assert registry.subjects() == []


async def test_a_subject_made_anew_by_another_broker_is_another_subject(
    registry: Registry, rival: Registry
) -> None:
    await registry.register("orders", "json_schema", V1)
    await rival.register("orders", "json_schema", V1)
    await rival.delete_subject("orders")
    await rival.register("orders", "string", b"")
    await registry.register("orders", "string", b"")

    assert registry.subject("orders") == rival.subject("orders")
    with pytest.raises(SchemaNotFoundError):
        registry.get(1)


async def test_bindings_of_another_broker_come_with_the_next_change_that_meets_them(
    registry: Registry, rival: Registry
) -> None:
    told: list[str] = []
    registry.on_bound.append(told.append)
    await rival.register("users", "string", b"")
    await rival.bind("/default/users", "users", policy="warn")
    await registry.register("orders", "string", b"")

    assert registry.binding("/default/users").policy is Policy.WARN
    assert told == ["/default/users"]
    await rival.unbind("/default/users")
    await rival.bind("/default/users", "users", policy="none")
    await registry.unbind("/default/users")
    assert registry.bindings() == []


@pytest.fixture
def interrupted() -> Interrupted:
    return Interrupted()


async def test_a_subject_that_comes_and_goes_during_a_start_is_not_there(
    interrupted: Interrupted, hand: Hand
) -> None:
    rival = await Registry.open(interrupted.reopened(), now_ms=hand.now_ms)
    await rival.register("orders", "json_schema", V1)
    # It comes after all versions were read, and goes before its own is.
    interrupted.before = {
        "schemas/subjects/": lambda: rival.register("users", "string", b""),
        "schemas/versions/0000000002/0000000001": lambda: rival.delete_subject("users"),
    }
    registry = await Registry.open(interrupted, now_ms=hand.now_ms)

    assert interrupted.before == {}
    assert [one.subject for one in registry.subjects()] == ["orders"]


async def test_a_binding_that_comes_and_goes_during_a_start_is_not_there(
    interrupted: Interrupted, hand: Hand
) -> None:
    rival = await Registry.open(interrupted.reopened(), now_ms=hand.now_ms)
    await rival.register("orders", "json_schema", V1)

    async def come() -> None:
        await rival.register("users", "string", b"")
        await rival.bind(TOPIC, "users")

    async def go() -> None:
        await rival.unbind(TOPIC)
        await rival.delete_subject("users")
        await rival.delete_subject("orders")

    # It comes after all subjects were read, and goes before its own is.
    interrupted.before = {"schemas/bindings/": come, "schemas/subjects/users": go}
    registry = await Registry.open(interrupted, now_ms=hand.now_ms)

    assert interrupted.before == {}
    assert (registry.subjects(), registry.bindings()) == ([], [])


async def test_a_change_that_is_overtaken_again_and_again_gives_up(hand: Hand) -> None:
    metadata = Contended(times=0)
    registry = await Registry.open(metadata, now_ms=hand.now_ms)
    metadata.times = ATTEMPTS - 1
    await registry.register("orders", "string", b"")
    metadata.times = ATTEMPTS

    with pytest.raises(RevisionMismatchError):
        await registry.register("users", "string", b"")
    assert [one.subject for one in registry.subjects()] == ["orders"]


# Storage that fails.


async def test_nothing_is_seen_of_a_change_that_could_not_be_written(hand: Hand) -> None:
    metadata = Failing()
    registry = await Registry.open(metadata, now_ms=hand.now_ms)
    await registry.register("orders", "json_schema", V1)
    await registry.register("orders", "json_schema", V2)
    await registry.bind(TOPIC, "orders")
    before = (registry.subjects(), registry.bindings())
    told: list[str] = []
    registry.on_bound.append(told.append)
    metadata.fails = lambda: True

    for call in (
        registry.register("orders", "json_schema", V3),
        registry.register("users", "string", b""),
        registry.set_mode("orders", "none"),
        registry.delete_version("orders", 1),
        registry.bind(TOPIC, "orders", policy="none"),
        registry.unbind(TOPIC),
    ):
        with pytest.raises(StorageFailedError):
            await call
    assert (registry.subjects(), registry.bindings(), told) == (*before, [])
    metadata.fails = lambda: False
    assert (await registry.register("users", "string", b"")).schema_id == 2


async def test_a_change_whose_answer_was_lost_is_found_by_the_next_try(hand: Hand) -> None:
    metadata = Failing()
    registry = await Registry.open(metadata, now_ms=hand.now_ms)
    await registry.register("orders", "json_schema", V1)
    metadata.loses_answers = True
    with pytest.raises(StorageFailedError):
        await registry.register("orders", "json_schema", V2)
    with pytest.raises(StorageFailedError):
        await registry.register("users", "string", b"")
    metadata.loses_answers = False

    again = await registry.register("orders", "json_schema", V2)
    assert (again.version, again.is_new) == (2, False)
    users = await registry.register("users", "string", b"")
    assert (users.schema_id, users.is_new) == (2, False)


async def test_a_subject_is_gone_also_when_its_versions_could_not_be_removed(hand: Hand) -> None:
    metadata = Failing()
    registry = await Registry.open(metadata, now_ms=hand.now_ms)
    await registry.register("orders", "json_schema", V1)
    writes = iter([False, True])
    metadata.fails = lambda: next(writes)
    await registry.delete_subject("orders")

    assert registry.subjects() == []
    metadata.fails = lambda: False
    again = await Registry.open(metadata, now_ms=hand.now_ms)
    assert again.subjects() == []
    assert await metadata.list("schemas/versions/") == []


async def test_memory_follows_a_write_whose_caller_gave_up(hand: Hand) -> None:
    metadata = Slow()
    registry = await Registry.open(metadata, now_ms=hand.now_ms)
    metadata.go_on.set()
    await registry.register("orders", "json_schema", V1)
    told: list[str] = []
    registry.on_bound.append(told.append)
    for call in (registry.register("users", "string", b""), registry.bind(TOPIC, "orders")):
        metadata.go_on.clear()
        metadata.writing.clear()
        changing = asyncio.ensure_future(call)
        await metadata.writing.wait()
        changing.cancel()
        await asyncio.wait([changing])
        assert changing.cancelled()
    metadata.go_on.set()
    await registry.register("last", "string", b"")

    assert [one.subject for one in registry.subjects()] == ["last", "orders", "users"]
    assert (registry.binding(TOPIC).subject, told) == ("orders", [TOPIC])


class Slow(MemoryMetadata):
    """Facts whose writes take until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = asyncio.Event()
        self.go_on = asyncio.Event()

    async def write(self, *changes: Put | Delete) -> int:
        self.writing.set()
        await self.go_on.wait()
        return await super().write(*changes)


# Facts that are not what was written.


async def test_a_missing_version_stops_the_start(
    registry: Registry, metadata: MemoryMetadata, hand: Hand
) -> None:
    await registry.register("orders", "json_schema", V1)
    await metadata.write(Delete("schemas/versions/0000000001/0000000001"))

    with pytest.raises(CorruptedError, match="version 1 is missing"):
        await Registry.open(metadata, now_ms=hand.now_ms)


async def test_a_binding_to_nothing_stops_the_start(
    registry: Registry, metadata: MemoryMetadata, hand: Hand
) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.bind(TOPIC, "orders")
    await metadata.write(Delete("schemas/subjects/orders"))

    with pytest.raises(CorruptedError, match="schema 'orders' is missing"):
        await Registry.open(metadata, now_ms=hand.now_ms)


@settings(max_examples=100)
@given(slot=st.integers(0, 3), position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_stops_the_start_or_changes_words_only(
    slot: int, position: int, byte: int
) -> None:
    async def change() -> None:
        metadata = MemoryMetadata()
        registry = await Registry.open(metadata, now_ms=Hand().now_ms)
        await registry.register("orders", "json_schema", V1)
        await registry.bind(TOPIC, "orders")
        key, value, _ = (await metadata.list(""))[slot]
        changed = bytearray(value)
        changed[position % len(changed)] = byte
        await metadata.write(Put(key, bytes(changed)))
        try:
            again = await Registry.open(metadata, now_ms=Hand().now_ms)
        except CorruptedError:
            return
        again.subjects()
        again.bindings()

    asyncio.run(change())
