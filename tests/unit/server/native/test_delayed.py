"""Messages to be published later, from hostile and broken clients, cost a request at most."""

from typing import Any

import pytest
from tests.unit.server.native.test_timelines import TimelineEnd

from ister.base.limits import MIB, TIMELINE_CHANGES_MAX
from ister.codec import encode
from ister.wire import Command, Done, ErrorReply, SendDelayed

BAD_REQUEST = 1007


@pytest.fixture
async def end() -> TimelineEnd:
    return TimelineEnd()


def command(payloads: list[bytes] | None = None, **changes: Any) -> SendDelayed:
    columns: dict[str, Any] = {"producer": b"p", "numbered": False}
    columns |= {name: changes.pop(name) for name in ("replies", "producer") if name in changes}
    batch = b"".join(encode([b"x"] if payloads is None else payloads, **columns))
    fields: dict[str, Any] = {"channel": 1, "word": "w", "batch": batch, "delays_ms": []}
    return SendDelayed(**fields | changes)


async def refused(end: TimelineEnd, bad: Command) -> int:
    """Return the number of the error, after a good command was taken as well."""
    code = await end.code(bad)
    assert await end.ask(command(word="good")) == Done()
    return code


@pytest.mark.parametrize(
    "changes",
    [
        {"channel": 9},
        {"payloads": [b""] * (TIMELINE_CHANGES_MAX + 1)},
        {"due_ms": [2**53]},
        {"delays_ms": [2**63 - 1]},
        {"replies": [(1, 1)]},
        {"word": "x" * 65},
    ],
)
async def test_what_makes_no_sense_is_refused(end: TimelineEnd, changes: dict[str, Any]) -> None:
    assert await refused(end, command(**changes)) == BAD_REQUEST


@pytest.mark.parametrize("word", ["", "a b", "\0", "a/b"])
async def test_a_word_that_is_no_name_is_refused(end: TimelineEnd, word: str) -> None:
    answer = await end.ask(command(word=word))

    assert isinstance(answer, ErrorReply)
    assert await end.ask(command()) == Done()


@pytest.mark.parametrize("batch", [b"", b"x" * 200])
async def test_a_broken_batch_is_refused(end: TimelineEnd, batch: bytes) -> None:
    answer = await end.ask(command(batch=batch))

    assert isinstance(answer, ErrorReply)
    assert await end.ask(command()) == Done()


async def test_a_batch_with_a_bit_turned_round_is_refused(end: TimelineEnd) -> None:
    good = command([b"payload"])
    for place in range(16, len(good.batch)):
        broken = bytearray(good.batch)
        broken[place] ^= 1
        assert isinstance(await end.ask(command(batch=bytes(broken))), ErrorReply)


async def test_the_name_of_another_producer_is_refused(end: TimelineEnd) -> None:
    assert isinstance(await end.ask(command(producer=b"q")), ErrorReply)


async def test_a_message_that_is_too_large_is_refused(end: TimelineEnd) -> None:
    answer = await end.ask(command([bytes(MIB)]))

    assert isinstance(answer, ErrorReply)
    assert answer.fields["topic"] == "/default/x"


async def test_a_time_that_has_passed_is_now(end: TimelineEnd) -> None:
    assert await end.ask(command(due_ms=[0])) == Done()
    assert await end.ask(command(word="v", due_ms=[-(2**62)])) == Done()
