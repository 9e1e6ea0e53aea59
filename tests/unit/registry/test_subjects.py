"""Subjects and their versions: what is registered, refused, found again and deleted."""

import asyncio
import threading

import msgspec
import pytest
from tests.unit.registry.conftest import Hand
from tests.unit.registry.definitions import OTHER, V1, V2, V3, record

from ister.base.errors import (
    BadNameError,
    BadRequestError,
    BadSchemaError,
    LimitReachedError,
    SchemaIncompatibleError,
    SchemaNotFoundError,
)
from ister.metadata import MemoryMetadata
from ister.registry import Registered, Registry, RegistryLimits, SubjectVersion
from ister.schemas import Mode, Schema, SchemaType, Steps, parse_schema

# Registering.


async def test_a_first_definition_is_version_one_of_a_subject_with_an_id(
    registry: Registry,
) -> None:
    done = await registry.register("orders", "json_schema", V1)

    assert (done.schema_id, done.version, done.is_new) == (1, 1, True)
    assert done.fingerprint.startswith("sha256:")


async def test_all_versions_of_a_subject_share_its_id(registry: Registry) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.register("users", "json_schema", V1)
    done = await registry.register("orders", "json_schema", V2)

    assert (done.schema_id, done.version, done.is_new) == (1, 2, True)
    assert registry.subject("users").schema_id == 2
    assert registry.subject("orders").versions == [1, 2]


async def test_a_definition_that_means_the_same_is_the_same_version(registry: Registry) -> None:
    first = await registry.register("orders", "json_schema", V1)
    await registry.register("orders", "json_schema", V2)
    again = await registry.register("orders", "JSON", V1.replace(b" ", b"\n "))

    assert again == Registered(schema_id=1, version=1, is_new=False, fingerprint=first.fingerprint)
    assert registry.subject("orders").versions == [1, 2]


async def test_what_was_said_about_a_version_is_kept(registry: Registry, hand: Hand) -> None:
    hand.ms = 77
    done = await registry.register(
        "orders", "string", b"", description="Text.", created_by="ann", tags=["a", "b"]
    )

    assert registry.version("orders") == SubjectVersion(
        subject="orders",
        schema_id=1,
        version=1,
        type=SchemaType.STRING,
        definition=b"",
        fingerprint=done.fingerprint,
        description="Text.",
        created_by="ann",
        tags=["a", "b"],
        created_ms=77,
    )
    assert registry.subject("orders").tags == ["a", "b"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "x" * 256])
async def test_a_bad_name_is_refused(registry: Registry, name: str) -> None:
    with pytest.raises(BadNameError):
        await registry.register(name, "string", b"")
    assert registry.subjects() == []


@pytest.mark.parametrize(
    ("type", "definition"), [("xml", b""), ("json_schema", b"{"), ("avro", b'"nothing"')]
)
async def test_a_bad_schema_is_refused(registry: Registry, type: str, definition: bytes) -> None:
    with pytest.raises(BadSchemaError):
        await registry.register("orders", type, definition)
    assert registry.subjects() == []


async def test_words_have_limits(registry: Registry) -> None:
    long = "x" * 256
    with pytest.raises(BadRequestError):
        await registry.register("orders", "string", b"", description="x" * 4097)
    with pytest.raises(BadRequestError):
        await registry.register("orders", "string", b"", created_by=long)
    with pytest.raises(BadRequestError):
        await registry.register("orders", "string", b"", tags=[long])
    with pytest.raises(BadRequestError):
        await registry.register("orders", "string", b"", tags=["t"] * 65)
    with pytest.raises(BadRequestError):
        await registry.register("orders", "string", b"", description="\ud800")
    assert registry.subjects() == []


# Compatibility.


async def test_a_new_subject_is_backward_compatible(registry: Registry) -> None:
    await registry.register("orders", "json_schema", V1)

    assert registry.subject("orders").mode is Mode.BACKWARD
    with pytest.raises(SchemaIncompatibleError) as caught:
        await registry.register("orders", "json_schema", OTHER)
    assert (caught.value.subject, caught.value.mode) == ("orders", "backward")
    assert "id" in caught.value.reasons[0]
    assert registry.subject("orders").versions == [1]


async def test_a_mode_given_with_a_definition_is_the_subjects_from_then_on(
    registry: Registry,
) -> None:
    await registry.register("orders", "json_schema", V1, mode="NONE")
    assert registry.subject("orders").mode is Mode.NONE
    await registry.register("orders", "json_schema", OTHER)
    await registry.register("orders", "json_schema", OTHER, mode="full")

    assert registry.subject("orders").mode is Mode.FULL
    assert registry.subject("orders").versions == [1, 2]


async def test_a_mode_can_be_set(registry: Registry) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.set_mode("orders", "none")
    await registry.register("orders", "json_schema", OTHER)

    assert registry.subject("orders").mode is Mode.NONE
    with pytest.raises(BadRequestError):
        await registry.set_mode("orders", "sideways")
    with pytest.raises(SchemaNotFoundError):
        await registry.set_mode("users", "none")


async def test_only_a_transitive_mode_looks_past_the_latest_version(registry: Registry) -> None:
    narrow, wide = record(id="string"), b"{}"
    await registry.register("orders", "json_schema", V1, mode="none")
    await registry.register("orders", "json_schema", narrow)

    assert await registry.check("orders", "json_schema", wide, mode="backward_transitive") == []
    text = record(("more",), id="string")
    assert await registry.check("orders", "json_schema", text, mode="backward") == []
    assert await registry.check("orders", "json_schema", text, mode="backward_transitive") != []


@pytest.mark.parametrize("mode", ["none", "backward"])
async def test_the_type_of_a_subject_never_changes(registry: Registry, mode: str) -> None:
    await registry.register("orders", "string", b"", mode=mode)

    assert await registry.check("orders", "bytes", b"") == ["the type changed from string to bytes"]
    with pytest.raises(SchemaIncompatibleError):
        await registry.register("orders", "bytes", b"")


async def test_a_check_changes_nothing(registry: Registry) -> None:
    await registry.register("orders", "json_schema", V1)

    assert await registry.check("orders", "json_schema", V2) == []
    assert await registry.check("orders", "json_schema", OTHER) != []
    assert await registry.check("orders", "json_schema", OTHER, mode="none") == []
    assert registry.subject("orders").versions == [1]
    assert registry.subject("orders").mode is Mode.BACKWARD
    with pytest.raises(SchemaNotFoundError):
        await registry.check("users", "json_schema", V1)
    with pytest.raises(BadSchemaError):
        await registry.check("orders", "json_schema", b"{")


# Finding.


async def test_versions_are_found_by_id_and_by_subject(registry: Registry) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.register("orders", "json_schema", V2)

    assert registry.get(1, 1).definition == V1
    assert registry.get(1).definition == V2
    assert registry.version("orders", 1).definition == V1
    assert registry.version("orders").version == 2
    assert [one.definition for one in registry.versions("orders")] == [V1, V2]


async def test_what_is_not_there_is_not_found(registry: Registry) -> None:
    await registry.register("orders", "string", b"")

    for call in (
        lambda: registry.get(2),
        lambda: registry.get(1, 2),
        lambda: registry.version("users"),
        lambda: registry.version("orders", 2),
        lambda: registry.versions("users"),
        lambda: registry.subject("users"),
    ):
        with pytest.raises(SchemaNotFoundError):
            call()


async def test_subjects_are_listed_by_page(registry: Registry) -> None:
    for name in ("c", "a", "d", "b"):
        await registry.register(name, "string", b"")

    assert [one.subject for one in registry.subjects(limit=2)] == ["a", "b"]
    assert [one.subject for one in registry.subjects(after="b", limit=3)] == ["c", "d"]
    assert registry.subjects(after="d") == []


async def test_subjects_are_listed_by_name(registry: Registry) -> None:
    for name in ("b", "a", "c"):
        await registry.register(name, "string", b"")

    assert [one.subject for one in registry.subjects()] == ["a", "b", "c"]


# Deleting.


async def test_the_number_of_a_deleted_version_is_not_given_again(
    registry: Registry, metadata: MemoryMetadata, hand: Hand
) -> None:
    for definition in (V1, V2, V3):
        await registry.register("orders", "json_schema", definition)
    await registry.delete_version("orders", 3)

    assert registry.subject("orders").latest_version == 2
    with pytest.raises(SchemaNotFoundError):
        registry.version("orders", 3)
    again = await Registry.open(metadata, now_ms=hand.now_ms)
    assert (await again.register("orders", "json_schema", V3)).version == 4
    assert again.subject("orders").versions == [1, 2, 4]


async def test_a_subject_goes_with_its_last_version(registry: Registry) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.register("orders", "json_schema", V2)
    await registry.delete_version("orders", 1)
    await registry.delete_version("orders", 2)

    assert registry.subjects() == []
    with pytest.raises(SchemaNotFoundError):
        registry.get(1)


async def test_the_id_of_a_deleted_subject_is_not_given_again(
    registry: Registry, metadata: MemoryMetadata, hand: Hand
) -> None:
    await registry.register("orders", "json_schema", V1)
    await registry.register("orders", "json_schema", V2)
    await registry.delete_subject("orders")
    again = await Registry.open(metadata, now_ms=hand.now_ms)

    assert again.subjects() == []
    # Nothing of the former one counts.
    done = await again.register("orders", "json_schema", OTHER)
    assert (done.schema_id, done.version) == (2, 1)


async def test_nothing_is_left_of_a_deleted_subject_but_its_id(
    registry: Registry, metadata: MemoryMetadata
) -> None:
    # More versions than one write can remove.
    await registry.register("orders", "string", b"", mode="none")
    for number in range(150):
        await registry.register(
            "many", "json_schema", record(**{f"p{number}": "string"}), mode="none"
        )
    await registry.delete_subject("orders")
    await registry.delete_subject("many")

    assert [fact.key for fact in await metadata.list("")] == ["schemas/id"]


async def test_what_is_not_there_cannot_be_deleted(registry: Registry) -> None:
    await registry.register("orders", "string", b"")

    with pytest.raises(SchemaNotFoundError):
        await registry.delete_version("orders", 2)
    with pytest.raises(SchemaNotFoundError):
        await registry.delete_version("users", 1)
    with pytest.raises(SchemaNotFoundError):
        await registry.delete_subject("users")


# Limits.


async def test_subjects_have_a_limit(metadata: MemoryMetadata, hand: Hand) -> None:
    limits = RegistryLimits(subjects_max=2)
    registry = await Registry.open(metadata, now_ms=hand.now_ms, limits=limits)
    for name in ("a", "b"):
        await registry.register(name, "string", b"")

    with pytest.raises(LimitReachedError):
        await registry.register("c", "string", b"")
    assert not (await registry.register("a", "string", b"")).is_new
    await registry.delete_subject("a")
    await registry.register("c", "string", b"")


async def test_versions_have_a_limit(metadata: MemoryMetadata, hand: Hand) -> None:
    limits = RegistryLimits(versions_max=2)
    registry = await Registry.open(metadata, now_ms=hand.now_ms, limits=limits)
    for definition in (V1, V2):
        await registry.register("a", "json_schema", definition)

    with pytest.raises(LimitReachedError):
        await registry.register("a", "json_schema", V3)
    await registry.delete_version("a", 1)
    assert (await registry.register("a", "json_schema", V3)).version == 3


async def test_definitions_together_have_a_limit(metadata: MemoryMetadata, hand: Hand) -> None:
    limits = RegistryLimits(definitions_bytes_max=len(V1) + len(V2))
    registry = await Registry.open(metadata, now_ms=hand.now_ms, limits=limits)
    await registry.register("a", "json_schema", V1)
    await registry.register("a", "json_schema", V2)

    with pytest.raises(LimitReachedError):
        await registry.register("b", "json_schema", V1)
    with pytest.raises(LimitReachedError):
        await registry.register("a", "json_schema", V3)
    await registry.delete_version("a", 1)
    await registry.register("b", "json_schema", V1)
    await registry.delete_subject("a")
    await registry.register("c", "json_schema", V1)


# All at once.


async def test_one_definition_registered_many_times_at_once_is_one_version(
    registry: Registry,
) -> None:
    done = await asyncio.gather(
        *(registry.register("orders", "json_schema", V1) for _ in range(20))
    )

    assert {(one.schema_id, one.version) for one in done} == {(1, 1)}
    assert sum(one.is_new for one in done) == 1


async def test_definitions_registered_at_once_get_numbers_without_gaps(registry: Registry) -> None:
    definitions = [record(**{f"p{number}": "string"}) for number in range(20)]
    done = await asyncio.gather(
        *(registry.register("orders", "json_schema", one, mode="none") for one in definitions)
    )

    assert {one.schema_id for one in done} == {1}
    assert sorted(one.version for one in done) == list(range(1, 21))
    for definition, one in zip(definitions, done, strict=True):
        assert registry.get(1, one.version).definition == definition


async def test_subjects_registered_at_once_get_ids_without_gaps(registry: Registry) -> None:
    done = await asyncio.gather(*(registry.register(f"s{n}", "string", b"") for n in range(50)))

    assert sorted(one.schema_id for one in done) == list(range(1, 51))


async def test_many_registrations_take_two_threads(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are left to whoever publishes, and needs a batch to be checked."""
    busy, most = 0, 0
    lock = threading.Lock()

    def counting(type: SchemaType, definition: bytes, steps: Steps) -> Schema:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        try:
            return parse_schema(type, definition, steps)
        finally:
            with lock:
                busy -= 1

    monkeypatch.setattr("ister.registry.registry.parse_schema", counting)
    definitions = [record((f"f{n}",)) for n in range(40)]
    await asyncio.gather(
        *(registry.register(f"s{n}", "json_schema", one) for n, one in enumerate(definitions))
    )

    assert most <= 2


async def test_a_definition_that_is_there_word_by_word_is_not_parsed_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand producers that start at once cost a thousand comparisons of texts."""
    first = await registry.register("orders", "json_schema", V1)
    second = await registry.register("orders", "json_schema", V2)
    monkeypatch.delattr("ister.registry.registry.parse_schema")

    assert await registry.register("orders", "json_schema", V1) == msgspec.structs.replace(
        first, is_new=False
    )
    assert (await registry.register("orders", "json", V2)).version == second.version


async def test_of_two_definitions_at_once_the_second_must_fit_the_first(
    registry: Registry,
) -> None:
    done = await asyncio.gather(
        registry.register("orders", "json_schema", V1),
        registry.register("orders", "json_schema", OTHER),
        return_exceptions=True,
    )

    assert sum(isinstance(one, SchemaIncompatibleError) for one in done) == 1
    assert registry.subject("orders").versions == [1]
