"""What every store of facts must do: in a file of SQLite, and in memory."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.base.errors import BadRequestError, ClosedError, RevisionMismatchError
from ister.base.limits import FACT_KEY_BYTES_MAX, FACTS_BYTES_MAX, FACTS_PER_WRITE_MAX
from ister.metadata import (
    Delete,
    Fact,
    MemoryMetadata,
    Metadata,
    Put,
    SqliteMetadata,
    facts_below,
)

Open = Callable[[], Metadata]


class MetadataContract(ABC):
    """What every store must do. Subclasses supply `open_store` and add nothing."""

    @pytest.fixture
    @abstractmethod
    def open_store(self) -> Open:
        """Return what opens the same facts, again and again."""

    @pytest.fixture
    async def store(self, open_store: Open) -> AsyncIterator[Metadata]:
        store = open_store()
        yield store
        await store.close()

    async def test_a_fact_is_read_as_it_was_put(self, store: Metadata) -> None:
        revision = await store.write(Put("topics/ä/☃", b"\0value\xff"))

        assert await store.get("topics/ä/☃") == Fact("topics/ä/☃", b"\0value\xff", revision)

    async def test_an_absent_fact_is_none(self, store: Metadata) -> None:
        assert await store.get("absent") is None
        assert await store.list("absent") == []
        await store.write(Put("absent1", b""), Put("absen", b""))
        assert await store.get("absent") is None

    async def test_an_empty_value_is_a_value(self, store: Metadata) -> None:
        await store.write(Put("a", b""))

        found = await store.get("a")
        assert found is not None
        assert found.value == b""

    async def test_all_facts_of_a_write_are_at_its_revision(self, store: Metadata) -> None:
        revision = await store.write(Put("a", b"1"), Put("b", b"2"))

        assert [fact.revision for fact in await store.list("")] == [revision, revision]

    async def test_revisions_rise_also_over_deletions(self, store: Metadata) -> None:
        first = await store.write(Put("a", b"1"))
        second = await store.write(Delete("a"))
        third = await store.write(Put("a", b"1"))

        assert 0 < first < second < third
        with pytest.raises(RevisionMismatchError):
            await store.write(Put("a", b"2", first))

    async def test_a_deleted_fact_is_gone(self, store: Metadata) -> None:
        await store.write(Put("a", b"1"), Put("b", b"2"))
        await store.write(Delete("a"), Delete("never was"))

        assert await store.get("a") is None
        assert [fact.key for fact in await store.list("")] == ["b"]

    @pytest.mark.parametrize("change", [Put("a", b"new", 0), Delete("a", 0)])
    async def test_only_if_absent_holds_for_an_absent_fact_alone(
        self, store: Metadata, change: Put | Delete
    ) -> None:
        await store.write(change)
        revision = await store.write(Put("a", b"old"))

        with pytest.raises(RevisionMismatchError) as caught:
            await store.write(change)
        assert caught.value.key == "a"
        assert await store.get("a") == Fact("a", b"old", revision)

    async def test_only_at_a_revision_holds_for_that_one_alone(self, store: Metadata) -> None:
        stale = await store.write(Put("a", b"1"))
        current = await store.write(Put("a", b"2", stale))

        for change in (Put("a", b"3", stale), Delete("a", stale), Put("b", b"", current)):
            with pytest.raises(RevisionMismatchError):
                await store.write(change)
        assert await store.list("") == [Fact("a", b"2", current)]
        await store.write(Delete("a", current))
        assert await store.list("") == []

    async def test_a_write_happens_in_all_parts_or_none(self, store: Metadata) -> None:
        revision = await store.write(Put("a", b"1"), Put("b", b"1"))

        with pytest.raises(RevisionMismatchError) as caught:
            await store.write(Put("a", b"2"), Delete("b"), Put("new", b""), Put("c", b"", 7))
        assert caught.value.key == "c"
        assert await store.list("") == [Fact("a", b"1", revision), Fact("b", b"1", revision)]

    async def test_facts_are_listed_by_key_below_a_prefix_in_pages(self, store: Metadata) -> None:
        keys = ["a", "b/", "b/1", "b/10", "b/2", "b/é", "b/日", "b/😀", "b0", "c"]
        await store.write(*(Put(key, b"") for key in reversed(keys)))

        async def listed(prefix: str, after: str = "", limit: int = 100) -> list[str]:
            return [fact.key for fact in await store.list(prefix, after=after, limit=limit)]

        assert await listed("") == keys
        assert await listed("b/") == keys[1:8]
        assert await listed("b/", limit=2) == keys[1:3]
        assert await listed("b/", after="b/1", limit=2) == keys[3:5]
        assert await listed("b/", after="b/1z") == keys[4:8]
        assert await listed("b/", after="b/😀") == []
        assert await listed("b/", after="a") == keys[1:8]
        assert await listed("x") == []

    async def test_all_facts_below_a_prefix_come_page_by_page(self, store: Metadata) -> None:
        await store.write(*(Put(f"b/{n:03}", b"%d" % n) for n in range(25)), Put("c", b""))

        for page in (1, 10, 25, 1000):
            values = [fact.value async for fact in facts_below(store, "b/", page=page)]
            assert values == [b"%d" % n for n in range(25)]

    async def test_what_one_wrote_another_sees(self, open_store: Open) -> None:
        one, other = open_store(), open_store()
        assert await other.get("a") is None
        revision = await one.write(Put("a", b"1"))

        assert await other.get("a") == Fact("a", b"1", revision)
        assert await other.write(Put("b", b"2")) > revision
        assert [fact.key for fact in await one.list("")] == ["a", "b"]
        await one.close()
        await other.close()

    async def test_facts_outlive_a_close(self, open_store: Open) -> None:
        store = open_store()
        revision = await store.write(Put("a", b"1"))
        await store.close()

        again = open_store()
        assert await again.get("a") == Fact("a", b"1", revision)
        assert await again.write(Put("b", b"")) > revision
        await again.close()

    async def test_of_many_writers_on_one_condition_one_succeeds(self, store: Metadata) -> None:
        async def write(number: int) -> bool:
            try:
                await store.write(Put("a", b"%d" % number, 0))
            except RevisionMismatchError:
                return False
            return True

        assert sum(await asyncio.gather(*map(write, range(20)))) == 1

    async def test_the_largest_write_is_taken_and_a_larger_one_refused(
        self, store: Metadata
    ) -> None:
        value = bytes(FACTS_BYTES_MAX - (FACTS_PER_WRITE_MAX - 1))
        changes = [Put(f"{n}", b"x") for n in range(FACTS_PER_WRITE_MAX - 1)]
        await store.write(*changes, Put("large", value))

        with pytest.raises(BadRequestError):
            await store.write(*changes, Put("large", value + b"x"))
        with pytest.raises(BadRequestError):
            await store.write(*changes, Put("large", b""), Put("more", b""))
        found = await store.get("large")
        assert found is not None
        assert found.value == value

    @pytest.mark.parametrize(
        "key", ["", "\ud800", "a\n", "a\0", "\U0010ffff", "k" * (FACT_KEY_BYTES_MAX + 1)]
    )
    async def test_a_bad_key_is_refused(self, store: Metadata, key: str) -> None:
        with pytest.raises(BadRequestError):
            await store.get(key)
        with pytest.raises(BadRequestError):
            await store.write(Put("good", b""), Put(key, b""))
        with pytest.raises(BadRequestError):
            await store.write(Delete(key))
        if key:
            with pytest.raises(BadRequestError):
                await store.list(key)
            with pytest.raises(BadRequestError):
                await store.list("", after=key)
        assert await store.list("") == []

    async def test_the_longest_key_is_taken(self, store: Metadata) -> None:
        key = "é" * (FACT_KEY_BYTES_MAX // 2)
        await store.write(Put(key, b"1"))

        assert [fact.key for fact in await store.list(key)] == [key]

    async def test_a_key_is_changed_once_by_a_write(self, store: Metadata) -> None:
        with pytest.raises(BadRequestError):
            await store.write(Put("a", b""), Delete("a"))
        assert await store.get("a") is None

    @pytest.mark.parametrize("limit", [0, -1, 1_001])
    async def test_a_page_has_a_sane_size(self, store: Metadata, limit: int) -> None:
        with pytest.raises(BadRequestError):
            await store.list("", limit=limit)

    async def test_nothing_works_after_a_close(self, store: Metadata) -> None:
        await store.write(Put("a", b""))
        await store.close()
        await store.close()

        with pytest.raises(ClosedError):
            await store.get("a")
        with pytest.raises(ClosedError):
            await store.list("")
        with pytest.raises(ClosedError):
            await store.write(Put("a", b""))


class TestMemoryMetadata(MetadataContract):
    @pytest.fixture
    def open_store(self) -> Open:
        facts = MemoryMetadata()
        return facts.reopened


class TestSqliteMetadata(MetadataContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Open:
        return lambda: SqliteMetadata(tmp_path / "data")


# All of them do the same, whatever is asked.

keys = st.text(alphabet="ab/é", min_size=1, max_size=3)
revisions = st.one_of(st.none(), st.integers(0, 8))
puts = st.builds(Put, keys, st.binary(max_size=3), revisions)
deletes = st.builds(Delete, keys, revisions)
prefixes = st.one_of(st.just(""), keys)


@dataclass(frozen=True)
class Write:
    changes: list[Put | Delete]

    async def ask(self, store: Metadata) -> object:
        return await store.write(*self.changes)


@dataclass(frozen=True)
class Page:
    prefix: str
    after: str
    limit: int

    async def ask(self, store: Metadata) -> object:
        return await store.list(self.prefix, after=self.after, limit=self.limit)


writes = st.builds(Write, st.lists(st.one_of(puts, deletes), max_size=4))
pages = st.builds(Page, prefixes, prefixes, st.integers(1, 5))


async def answer(question: Write | Page, store: Metadata) -> object:
    try:
        return await question.ask(store)
    except (BadRequestError, RevisionMismatchError) as error:
        return type(error), str(error)


@settings(max_examples=30)
@given(questions=st.lists(st.one_of(writes, pages), max_size=15))
def test_a_file_answers_as_memory_does(questions: list[Write | Page]) -> None:
    async def ask() -> None:
        with TemporaryDirectory() as folder:
            memory, file = MemoryMetadata(), SqliteMetadata(Path(folder))
            for question in [*questions, Page("", "", 1_000)]:
                assert await answer(question, file) == await answer(question, memory), question
            await file.close()

    asyncio.run(ask())
