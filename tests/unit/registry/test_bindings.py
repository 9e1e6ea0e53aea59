"""Topics bound to subjects: what can be bound, who is told, what can be deleted."""

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.unit.registry.conftest import Hand
from tests.unit.registry.definitions import V1, V2, V3

from ister.base.errors import (
    BadNameError,
    BadRequestError,
    LimitReachedError,
    SchemaBindingNotFoundError,
    SchemaMismatchError,
    SchemaNotFoundError,
)
from ister.metadata import MemoryMetadata
from ister.registry import Binding, Registry, RegistryLimits
from ister.schemas import Policy

TOPIC = "/default/orders"


@pytest.fixture(autouse=True)
async def subjects(registry: Registry) -> None:
    """Two subjects, one of them with three versions."""
    for definition in (V1, V2, V3):
        await registry.register("orders", "json_schema", definition)
    await registry.register("users", "string", b"")


async def test_a_binding_enforces_any_version_unless_told_otherwise(registry: Registry) -> None:
    bound = await registry.bind(TOPIC, "orders")

    assert bound == registry.binding(TOPIC)
    assert bound == Binding(
        topic=TOPIC,
        subject="orders",
        policy=Policy.ENFORCE,
        validate_payload=True,
        version=0,
        min_version=0,
        schema_id=1,
    )


async def test_a_topic_can_be_bound_to_something_else(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders")
    await registry.bind(TOPIC, "users", policy="WARN", validate_payload=False, version=1)

    bound = registry.binding(TOPIC)
    assert (bound.subject, bound.schema_id, bound.version) == ("users", 2, 1)
    assert (bound.policy, bound.validate_payload) == (Policy.WARN, False)
    await registry.delete_subject("orders")


async def test_a_binding_can_be_left_to_whoever_was_first(registry: Registry) -> None:
    first = await registry.bind(TOPIC, "orders", policy="warn", replace=False)

    assert await registry.bind(TOPIC, "orders", policy="enforce", replace=False) == first
    with pytest.raises(SchemaMismatchError) as caught:
        await registry.bind(TOPIC, "users", replace=False)
    assert (caught.value.topic, caught.value.subject) == (TOPIC, "orders")
    assert registry.bindings() == [first]


async def test_of_two_who_would_be_first_at_once_one_is(registry: Registry) -> None:
    done = await asyncio.gather(
        registry.bind(TOPIC, "orders", replace=False),
        registry.bind(TOPIC, "users", replace=False),
        return_exceptions=True,
    )

    assert sum(isinstance(one, SchemaMismatchError) for one in done) == 1
    assert registry.binding(TOPIC) in done


async def test_what_is_not_there_cannot_be_bound_to(registry: Registry) -> None:
    for subject, version, min_version in (("none", 0, 0), ("orders", 4, 0), ("orders", 0, 4)):
        with pytest.raises(SchemaNotFoundError) as caught:
            await registry.bind(TOPIC, subject, version=version, min_version=min_version)
        assert (caught.value.subject, caught.value.version) == (subject, version or min_version)
    assert registry.bindings() == []


async def test_a_bad_binding_is_refused(registry: Registry) -> None:
    with pytest.raises(BadNameError):
        await registry.bind("orders", "orders")
    with pytest.raises(BadRequestError):
        await registry.bind(TOPIC, "orders", policy="sometimes")
    with pytest.raises(BadRequestError):
        await registry.bind(TOPIC, "orders", version=1, min_version=1)
    with pytest.raises(BadRequestError):
        await registry.bind(TOPIC, "orders", version=-1)
    assert registry.bindings() == []


async def test_a_topic_that_is_not_bound_has_no_binding_and_no_check(registry: Registry) -> None:
    for call in (registry.binding, registry.unbind):
        with pytest.raises(SchemaBindingNotFoundError):
            await asyncio.ensure_future(as_coroutine(call, TOPIC))
    assert registry.find_check(TOPIC) is None


async def as_coroutine(call: object, topic: str) -> None:
    assert callable(call)
    answer = call(topic)
    if asyncio.iscoroutine(answer):
        await answer


async def test_a_topic_can_be_unbound(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders")
    await registry.unbind(TOPIC)

    assert registry.bindings() == []
    assert registry.find_check(TOPIC) is None
    assert registry.tallies() == {}


async def test_a_binding_covers_the_partitions_of_its_topic(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders")

    assert registry.binding(f"{TOPIC}-part-12").subject == "orders"
    assert registry.find_check(f"{TOPIC}-part-0") is registry.find_check(TOPIC)
    for other in (f"{TOPIC}-part-x", f"{TOPIC}-part-01", f"{TOPIC}.part-1", "/default/order"):
        assert registry.find_check(other) is None
    with pytest.raises(SchemaBindingNotFoundError):
        await registry.unbind(f"{TOPIC}-part-0")


async def test_a_partition_may_be_bound_by_itself(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders")
    await registry.bind(f"{TOPIC}-part-1", "users")

    assert registry.binding(f"{TOPIC}-part-1").subject == "users"
    assert registry.binding(f"{TOPIC}-part-2").subject == "orders"


async def test_no_policy_is_no_check(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders", policy="none")

    assert registry.find_check(TOPIC) is None
    assert registry.binding(TOPIC).policy is Policy.NONE


async def test_whoever_wants_to_know_is_told_of_every_change(registry: Registry) -> None:
    told: list[str] = []
    registry.on_bound.append(told.append)
    for topic in (TOPIC, "/default/copy"):
        await registry.bind(topic, "orders")
    assert told == [TOPIC, "/default/copy"]
    told.clear()

    await registry.register("users", "string", b"", tags=["again"])
    await registry.set_mode("orders", "none")
    assert told == []
    await registry.delete_version("orders", 1)
    assert told == ["/default/copy", TOPIC]
    told.clear()
    await registry.register("orders", "json_schema", b"{}")
    assert told == ["/default/copy", TOPIC]
    told.clear()
    await registry.unbind(TOPIC)
    assert told == [TOPIC]


async def test_a_schema_in_use_cannot_be_deleted(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders")
    await registry.bind("/default/pinned", "orders", version=2)

    with pytest.raises(SchemaMismatchError) as caught:
        await registry.delete_subject("orders")
    assert caught.value.topic == "/default/orders"
    with pytest.raises(SchemaMismatchError) as caught:
        await registry.delete_version("orders", 2)
    assert caught.value.topic == "/default/pinned"
    await registry.delete_version("orders", 1)
    await registry.delete_version("orders", 3)
    await registry.unbind("/default/pinned")
    # The last one.
    with pytest.raises(SchemaMismatchError):
        await registry.delete_version("orders", 2)
    await registry.unbind(TOPIC)
    await registry.delete_version("orders", 2)


async def test_the_last_version_of_a_range_cannot_be_deleted(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders", min_version=3)
    await registry.delete_version("orders", 2)

    with pytest.raises(SchemaMismatchError):
        await registry.delete_version("orders", 3)


async def test_bindings_have_a_limit(metadata: MemoryMetadata, hand: Hand) -> None:
    limits = RegistryLimits(bindings_max=1)
    registry = await Registry.open(metadata, now_ms=hand.now_ms, limits=limits)
    await registry.bind(TOPIC, "orders")
    await registry.bind(TOPIC, "users")

    with pytest.raises(LimitReachedError):
        await registry.bind("/default/more", "orders")


async def test_a_policy_is_set_and_the_versions_that_are_taken_stay(registry: Registry) -> None:
    await registry.bind(TOPIC, "orders", min_version=2)
    bound = await registry.set_policy(TOPIC, "warn", validate_payload=False)

    assert bound == registry.binding(TOPIC)
    assert (bound.policy, bound.validate_payload, bound.min_version) == (Policy.WARN, False, 2)


async def test_a_policy_that_is_set_does_not_undo_a_change_made_at_once(
    registry: Registry,
) -> None:
    await registry.bind(TOPIC, "orders")
    await asyncio.gather(
        registry.bind(TOPIC, "orders", version=2),
        registry.set_policy(TOPIC, "warn", validate_payload=True),
    )
    bound = registry.binding(TOPIC)
    assert (bound.policy, bound.version) == (Policy.WARN, 2)

    _, refused = await asyncio.gather(
        registry.bind(TOPIC, "users"),
        registry.set_policy(TOPIC, "none", validate_payload=True),
        return_exceptions=True,
    )
    assert registry.binding(TOPIC).subject == "users"
    assert isinstance(refused, SchemaMismatchError) or registry.binding(TOPIC).policy != "none"


async def test_a_topic_that_is_not_bound_has_no_policy_to_set(registry: Registry) -> None:
    with pytest.raises(SchemaBindingNotFoundError):
        await registry.set_policy(TOPIC, "warn", validate_payload=True)


# Topics that are deleted.


async def test_a_topic_that_is_gone_is_bound_to_nothing(registry: Registry) -> None:
    binding = await registry.bind(TOPIC, "orders")
    assert registry.find_binding(TOPIC) == binding

    await registry.on_topic_deleted(binding)
    assert registry.find_binding(TOPIC) is None
    # Again, as two who delete it at once would.
    await registry.on_topic_deleted(binding)


async def test_a_topic_that_was_bound_anew_since_stays_bound(registry: Registry) -> None:
    former = await registry.bind(TOPIC, "orders")
    now = await registry.bind(TOPIC, "users")
    await registry.on_topic_deleted(former)
    assert registry.find_binding(TOPIC) == now

    await registry.bind(TOPIC, "users", policy="warn")
    await registry.on_topic_deleted(now)
    assert registry.binding(TOPIC).policy is Policy.WARN


async def test_a_topic_is_gone_also_when_its_binding_cannot_be_removed(
    registry: Registry, metadata: MemoryMetadata
) -> None:
    binding = await registry.bind(TOPIC, "orders")
    await metadata.close()

    with capture_logs() as lines:
        await registry.on_topic_deleted(binding)
    assert [(line["event"], line["topic"]) for line in lines] == [("binding_left", TOPIC)]


def test_a_partition_has_no_binding_of_its_own(registry: Registry) -> None:
    assert registry.find_binding(f"{TOPIC}-part-0") is None
