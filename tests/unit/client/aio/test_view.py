"""Views: the last value of every key."""

from datetime import UTC, datetime

import pytest

from ister.base.errors import BadRequestError
from ister.client import View, ViewEntry
from ister.codec import Batch, encode
from ister.testing import MemoryBroker


def batch(
    payloads: list[bytes],
    keys: list[str | None] | None,
    *,
    start: int = 0,
    attributes: list[dict[str, str] | None] | None = None,
) -> Batch:
    """Return a batch as a reader gets it."""
    made = Batch(b"".join(encode(payloads, keys=keys, attributes=attributes)))
    made.stamp(start, 1_000 + start)
    made.topic = "/default/ledger"
    return made


def test_the_last_payload_of_a_key_wins() -> None:
    view = View()
    view.fold(batch([b"1", b"2", b"3"], ["a", "b", "a"]))
    view.fold(batch([b"4"], ["b"], start=3))

    assert dict(view) == {"a": b"3", "b": b"4"}
    assert len(view) == 2


def test_a_message_without_a_payload_removes_its_key() -> None:
    view = View()
    view.fold(batch([b"1", b"2"], ["a", "b"]))
    view.fold(batch([b"", b""], ["a", "never seen"], start=2))

    assert dict(view) == {"b": b"2"}


def test_a_key_that_was_removed_can_come_back() -> None:
    view = View()
    view.fold(batch([b"1", b"", b"2", b"3", b""], ["a", "a", "a", "b", "b"]))

    assert dict(view) == {"a": b"2"}


def test_messages_without_a_key_are_skipped() -> None:
    view = View()
    view.fold(batch([b"1", b"2"], None))
    view.fold(batch([b"3", b"4", b""], [None, "a", None], start=2))

    assert dict(view) == {"a": b"4"}


def test_an_entry_tells_all_of_its_message() -> None:
    view = View()
    view.fold(batch([b"1", b"2"], ["a", "b"], start=7, attributes=[None, {"x": "y"}]))
    entry = view.entry("b")

    assert entry == ViewEntry(b"2", "/default/ledger", 8, 1_007, {"x": "y"})
    assert entry.publish_time == datetime.fromtimestamp(1.007, UTC)
    assert view.entry("a").attributes == {}
    with pytest.raises(KeyError):
        view.entry("c")


def test_a_view_is_read_only() -> None:
    view = View()

    assert not hasattr(view, "__setitem__")
    assert "a" not in view
    assert view.get("a") is None


async def test_a_time_given_as_an_offset_gets_a_hint() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("ledger", kind="stream")

        with pytest.raises(
            BadRequestError, match="an int is an offset; for a time give a datetime"
        ):
            await client.view("ledger", at=1_763_533_422)
        with pytest.raises(BadRequestError, match=r"which is 0$"):
            await client.view("ledger", at=1)
