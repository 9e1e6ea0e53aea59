"""What a check lets through, refuses, counts and tells."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
from structlog.testing import capture_logs
from tests.unit.registry.conftest import Hand
from tests.unit.registry.definitions import V1, V2, V3

from ister.base.errors import ExtraMissingError, SchemaViolationError
from ister.base.limits import CHECK_WORK_MAX
from ister.codec import Batch, Codec, encode
from ister.metadata import MemoryMetadata
from ister.registry import BindingCheck, Registry
from ister.schemas import Schema, Validator

TOPIC = "/default/orders"
GOOD = b'{"id": 1, "name": "n"}'
# Good by version 1, which knows no name.
ODD = b'{"id": 1, "name": 7}'
BAD = b'{"id": "one"}'


@pytest.fixture(autouse=True)
async def subjects(registry: Registry) -> None:
    """`orders` is schema 1 with the versions 1 and 3; `users` is schema 2."""
    for definition in (V1, V2, V3):
        await registry.register("orders", "json_schema", definition)
    await registry.delete_version("orders", 2)
    await registry.register("users", "string", b"")


def batch(*payloads: bytes, schema: tuple[int, int] = (0, 0)) -> Batch:
    return Batch(b"".join(encode(payloads or (GOOD,), schema=schema, producer=b"shop")))


async def check_of(registry: Registry, **binding: object) -> BindingCheck:
    await registry.bind(TOPIC, "orders", **binding)  # type: ignore[arg-type]  # by the table
    check = registry.find_check(TOPIC)
    assert check is not None
    return check


def fault(check: BindingCheck, batch: Batch) -> str:
    """Return why a batch is refused, or nothing."""
    try:
        check.check(batch)
    except SchemaViolationError as error:
        return error.reason
    return ""


# The table of the module.


@pytest.mark.parametrize(
    ("binding", "schema", "reason"),
    [
        ({}, (0, 0), "these name none"),
        ({}, (2, 1), "these name schema 2, not 1"),
        ({}, (9, 1), "these name schema 9, not 1"),
        ({}, (1, 2), "it has no version 2"),
        ({}, (1, 4), "it has no version 4"),
        ({}, (1, 0), ""),
        ({}, (1, 1), ""),
        ({}, (1, 3), ""),
        ({"version": 1}, (1, 1), ""),
        ({"version": 1}, (1, 0), ""),
        ({"version": 1}, (1, 3), "these are of version 3, and only 1 is taken"),
        ({"min_version": 3}, (1, 3), ""),
        ({"min_version": 3}, (1, 0), ""),
        ({"min_version": 3}, (1, 1), "these are of version 1, and none before 3 is"),
    ],
)
@pytest.mark.parametrize("validate", [True, False])
async def test_a_batch_must_name_a_version_that_is_taken(
    registry: Registry,
    binding: dict[str, int],
    schema: tuple[int, int],
    reason: str,
    validate: bool,
) -> None:
    check = await check_of(registry, validate_payload=validate, **binding)

    if validate and schema == (0, 0):
        reason = ""
    assert fault(check, batch(schema=schema)) == reason


@pytest.mark.parametrize(
    ("binding", "schema", "payload", "is_good"),
    [
        ({}, (0, 0), ODD, False),
        ({}, (1, 0), ODD, False),
        ({}, (1, 3), ODD, False),
        ({}, (1, 1), ODD, True),
        ({"version": 1}, (0, 0), ODD, True),
        ({"version": 1}, (1, 0), ODD, True),
        ({"version": 3}, (0, 0), ODD, False),
        ({"min_version": 1}, (0, 0), ODD, False),
        ({}, (1, 1), BAD, False),
        ({}, (1, 1), b"{", False),
    ],
)
async def test_payloads_are_checked_by_the_version_that_is_named_else_bound_else_latest(
    registry: Registry,
    binding: dict[str, int],
    schema: tuple[int, int],
    payload: bytes,
    is_good: bool,
) -> None:
    check = await check_of(registry, **binding)
    assert (fault(check, batch(payload, schema=schema)) == "") is is_good

    # Whatever it holds, when payloads are nobody's business.
    check = await check_of(registry, validate_payload=False, **binding)
    assert fault(check, batch(payload, schema=(1, binding.get("version", 3)))) == ""


async def test_the_first_bad_message_of_a_batch_is_named(registry: Registry) -> None:
    check = await check_of(registry)

    with pytest.raises(SchemaViolationError) as caught:
        check.check(batch(GOOD, GOOD, BAD, GOOD, BAD))
    assert (caught.value.topic, caught.value.subject) == (TOPIC, "orders")
    reason = caught.value.reason
    assert reason.startswith("message 3 of 5 is not of version 3: ")
    assert reason.endswith(" (and 1 more)")


async def test_a_compressed_batch_is_checked_too(registry: Registry) -> None:
    check = await check_of(registry)
    payloads = [GOOD] * 500 + [BAD]

    packed = Batch(b"".join(encode(payloads, codec=Codec.ZSTD)))
    assert fault(check, packed).startswith("message 501 of 501")


async def test_a_check_knows_versions_that_are_registered_later(registry: Registry) -> None:
    check = await check_of(registry)
    assert fault(check, batch(schema=(1, 4))) == "it has no version 4"
    await registry.register("orders", "json_schema", json.dumps({"type": "object"}).encode())

    assert fault(check, batch(BAD, schema=(1, 4))) == ""
    assert fault(check, batch(BAD)) == ""
    assert fault(check, batch(BAD, schema=(1, 3))) != ""
    # And those that are gone.
    await registry.delete_version("orders", 1)
    assert fault(check, batch(schema=(1, 1))) == "it has no version 1"


async def test_what_cannot_be_checked_is_not_good(registry: Registry) -> None:
    check = await check_of(registry)
    registry._subjects.get("orders").keep(3, cast(Schema, Unusable()))

    assert "pip install 'ister[schemas]'" in fault(check, batch())
    assert fault(check, batch(schema=(1, 1))) == ""


async def test_a_schema_weighs_what_its_payloads_take(registry: Registry) -> None:
    choices = [{"type": "object", "required": [f"k{n}"]} for n in range(1_000)]
    definition = json.dumps({"items": {"anyOf": choices}}).encode()
    await registry.register("choices", "json_schema", definition)
    await registry.bind("/default/choices", "choices")
    check, heavy = await check_of(registry), registry.find_check("/default/choices")
    assert heavy is not None

    assert 0 < check.weight(batch()) < 16
    assert heavy.weight(batch()) >= 1_000
    # Neither the version nor anything else of it is looked at.
    assert check.weight(batch(schema=(1, 2))) == 0
    assert (await check_of(registry, validate_payload=False)).weight(batch()) == 0


async def test_a_schema_that_is_yet_to_be_parsed_is_for_a_thread(registry: Registry) -> None:
    check = await check_of(registry)
    named = batch(schema=(1, 1))
    assert check.weight(named) * named.size_bytes > CHECK_WORK_MAX

    check.check(named)

    assert check.weight(named) < 16


class Unusable:
    """A schema of a type whose library is not installed here."""

    def validator(self) -> Validator:
        raise ExtraMissingError("schemas of type json_schema", "schemas")


async def test_topics_are_checked_after_a_restart(
    registry: Registry, metadata: MemoryMetadata, hand: Hand
) -> None:
    await check_of(registry, version=1)
    again = (await Registry.open(metadata, now_ms=hand.now_ms)).find_check(TOPIC)

    assert again is not None
    assert fault(again, batch(ODD)) == ""
    assert fault(again, batch(BAD)).startswith("message 1 of 1 is not of version 1")


# Policies.


async def test_a_warning_lets_everything_through_and_tells_of_it(registry: Registry) -> None:
    check = await check_of(registry, policy="warn")

    with capture_logs() as lines:
        check.check(batch(BAD))
        check.check(batch(GOOD))
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("schema_violated", "warning")
    assert (line["topic"], line["subject"], line["producer"]) == (TOPIC, "orders", "shop")
    assert line["reason"].startswith("message 1 of 1")
    assert "one" not in line["reason"], "a payload is nobody's business"


async def test_a_topic_warns_once_a_second_and_counts_what_it_did_not_tell(
    registry: Registry, hand: Hand
) -> None:
    check = await check_of(registry, policy="warn")
    with capture_logs() as lines:
        check.check(batch(BAD))
        hand.ms += 999
        for _ in range(5):
            check.check(batch(BAD))
        # Not even a change of the binding starts anew.
        check = await check_of(registry, policy="warn", version=1)
        check.check(batch(BAD))
        assert [line["batches"] for line in lines] == [1]
        hand.ms += 1
        check.check(batch(BAD))
        assert [line["batches"] for line in lines] == [1, 7]
        hand.ms -= 100_000
        check.check(batch(BAD))
    assert [line["batches"] for line in lines] == [1, 7, 1]


async def test_what_is_checked_is_counted_by_topic(registry: Registry) -> None:
    check = await check_of(registry)
    for payload in (GOOD, BAD, GOOD):
        fault(check, batch(payload, payload))
    await registry.bind("/default/other", "users")

    tallies = registry.tallies()
    assert (tallies[TOPIC].checked, tallies[TOPIC].violations) == (3, 1)
    assert (tallies["/default/other"].checked, tallies["/default/other"].violations) == (0, 0)
    await check_of(registry, policy="warn")
    assert registry.tallies()[TOPIC].checked == 3


async def test_threads_may_ask_at_once(registry: Registry) -> None:
    check = await check_of(registry)
    batches = [batch(*[BAD if n % 3 else GOOD] * 50, schema=(1, 1 + n % 2 * 2)) for n in range(90)]
    with ThreadPoolExecutor(8) as threads:
        faults = list(threads.map(lambda one: fault(check, one), batches))

    assert [bool(reason) for reason in faults] == [bool(n % 3) for n in range(90)]
    tally = registry.tallies()[TOPIC]
    assert (tally.checked, tally.violations) == (90, 60)


async def test_a_container_with_an_unknown_schema_is_for_a_thread(registry: Registry) -> None:
    """Its schema is parsed first, and the event loop has no time for that."""
    definition = b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    await registry.register("avro", "avro", definition)
    await registry.bind("/default/avro", "avro")
    check = registry.find_check("/default/avro")
    assert check is not None
    # One value of metadata, the schema; a mark of sixteen bytes; no block.
    meta = b"\x02\x16avro.schema" + bytes([2 * len(definition) & 127 | 128, len(definition) >> 6])
    container = batch(b"Obj\x01" + meta + definition + b"\x00" + bytes(16))
    value = batch(b"\x02")

    assert check.weight(value) * value.size_bytes <= CHECK_WORK_MAX
    assert check.weight(container) * container.size_bytes > CHECK_WORK_MAX
    check.check(container)
    assert check.weight(container) * container.size_bytes <= CHECK_WORK_MAX
