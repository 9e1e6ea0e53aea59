"""Hostile owners and consumers of timelines on a real socket, and settings that were damaged.

Whatever is said costs an error that has a name, or the connection; the broker lives, needs no more
memory, and serves others meanwhile. `made_up` takes its commands from the protocol: a new one is
attacked as well.
"""

import random
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.e2e.raw import RawClient, header
from tests.e2e.target import Target, attacked, open_target
from tests.fuzz.dialogues import changed, spoil
from tests.fuzz.timeline_dialogues import IDS, TIMELINES, leasing, made_up, scheduling

from ister.base import TimelineSettings
from ister.base.errors import (
    BadRequestError,
    CorruptedError,
    IsterError,
    MessageTooLargeError,
    ProtocolError,
)
from ister.base.limits import CONTROL_BYTES_MAX, MIB
from ister.broker.timelines.settings import decode_settings
from ister.timeline import TopicRow
from ister.wire import (
    PUT,
    ChangeTimeline,
    Command,
    ErrorReply,
    FinishLeases,
    LeasesRevoked,
    ListTimeline,
    Opcode,
    control_frame,
    decode_command,
    error_of,
)

# An example takes some milliseconds of two processes.
EXAMPLES = min(settings().max_examples, 1_000)
# The largest command, parsed into a list of numbers: 2 MiB of bytes make objects of 16 MiB, which
# are there twice when they are checked.
GROWTH_BYTES_MAX = 64 * MIB
LAST = 999_999


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker with timelines, and a client of it that is well-behaved."""
    with open_target(tmp_path_factory.mktemp("timelines")) as target:
        target.client.create_topic("/default/t", kind="timeline", max_leases=3)
        target.client.create_topic("/default/urgent", kind="priority")
        yield target


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def say(target: Target, frames: list[bytes], *, whole: bool) -> list[IsterError]:
    """Say something to a broker; return the errors that it has told."""
    with target.connect() as raw:
        raw.greet()
        try:
            # The answer to the last word comes after all others, if the frames before are whole.
            raw.send(*frames, control_frame(ListTimeline("/", 0, 0), sequence=LAST))
            if not whole:
                raw.socket.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # It was closed in the middle of it.
        return told(raw)


def told(raw: RawClient) -> list[IsterError]:
    """Return all errors up to the answer to the last word, or the end of the connection."""
    errors = []
    while (frame := raw.frame()) is not None:
        opcode, _, sequence, body = frame
        if opcode == Opcode.CONTROL:
            command = decode_command(body)
            if isinstance(command, ErrorReply):
                errors.append(error_of(command))
            if sequence == LAST:
                break
    return errors


@pytest.mark.e2e
def test_spoilt_commands_cost_an_error_or_the_connection(target: Target) -> None:
    codes: set[int] = set()

    @settings(max_examples=EXAMPLES)
    @given(rng=st.randoms(use_true_random=False))
    def attack(rng: random.Random) -> None:
        part = rng.choice([scheduling, leasing])
        frames = part(rng, now_ms())
        for _ in range(rng.randint(1, 3)):
            spoil(rng, frames)
        errors = say(target, frames, whole=False)
        codes.update(error.code for error in errors)
        target.check()

    with attacked(target, GROWTH_BYTES_MAX):
        attack()

    assert codes


@pytest.mark.e2e
def test_commands_that_are_made_up_are_answered(target: Target) -> None:
    codes: set[int] = set()

    @settings(max_examples=EXAMPLES)
    @given(rng=st.randoms(use_true_random=False))
    def attack(rng: random.Random) -> None:
        errors = say(target, made_up(rng), whole=True)
        codes.update(error.code for error in errors)
        target.check()

    with attacked(target, GROWTH_BYTES_MAX):
        attack()

    assert {BadRequestError.code, ProtocolError.code} <= codes


def change(**fields: object) -> bytes:
    """Return a command to put messages, with some of its fields replaced."""
    found: dict[str, object] = {
        "topic": TIMELINES[0],
        "group": "shop",
        "kinds": bytes([PUT]),
        "ids": ["huge"],
    }
    return control_frame(ChangeTimeline(**(found | fields)), sequence=1)  # type: ignore[arg-type]


def command(one: Command) -> bytes:
    return control_frame(one, sequence=1)


COUNT = 1_900_000
HUGE: dict[str, bytes] = {
    "times for two million messages": change(due_ms=[0] * COUNT),
    "two million kinds": change(kinds=bytes(COUNT)),
    "two million ids": change(ids=[""] * COUNT),
    "two million versions to finish": command(
        FinishLeases(channel=12, kinds=b"\0", ids=["a"], versions=[0] * COUNT)
    ),
    "two million answers": command(
        LeasesRevoked(channel=12, ids=["a"], versions=[0], kept=[True] * COUNT)
    ),
    "an id of two million bytes": change(ids=["x" * COUNT]),
    "a payload that is too large": change(payloads=[bytes(COUNT)]),
    "attributes that are too many": change(
        attributes=[msgspec.msgpack.encode({str(n): "" for n in range(100_000)})]
    ),
    "attributes that are too deep": change(attributes=[b"\x81\xa1a" * 300_000]),
    "attributes that claim four billion": change(attributes=[b"\xdf\xff\xff\xff\xff"]),
    "a place that is no place": command(
        ListTimeline(TIMELINES[0], 0, 2**53, after=(2**64 - 1, -(2**63)))
    ),
}


@pytest.mark.e2e
@pytest.mark.parametrize("frame", HUGE.values(), ids=HUGE)
def test_a_huge_command_is_refused_in_bounded_memory(target: Target, frame: bytes) -> None:
    with attacked(target, GROWTH_BYTES_MAX):
        errors = say(target, [frame], whole=True)

    assert isinstance(errors[0], BadRequestError | ProtocolError | MessageTooLargeError)


@pytest.mark.e2e
def test_a_command_that_never_ends_is_held_in_bounded_memory(target: Target) -> None:
    with attacked(target, GROWTH_BYTES_MAX):
        raws = [target.greeted() for _ in range(8)]
        for raw in raws:
            raw.send(header(CONTROL_BYTES_MAX, Opcode.CONTROL), bytes(CONTROL_BYTES_MAX - 1))
        target.check()
        for raw in raws:
            raw.close()


@pytest.mark.e2e
def test_owners_and_consumers_are_served_after_all_that(target: Target) -> None:
    timeline = target.client.timeline(TIMELINES[0], group="served")
    with timeline.consume("served") as leases:
        put = timeline.put(b"x")
        while (lease := leases.receive(timeout=20.0)).id != put.id:
            assert lease.id in IDS
        lease.done()


# What is stored of a topic

SETTINGS = msgspec.msgpack.encode(TimelineSettings(dead_letters="/default/letters"))


@given(rng=st.randoms(use_true_random=False), cut=st.integers(0, len(SETTINGS)))
def test_damaged_settings_are_read_or_refused(rng: random.Random, cut: int) -> None:
    whole = changed(rng, SETTINGS, start=0)

    for damaged in (whole, whole[:cut]):
        assert is_read_or_refused(damaged)


@given(damaged=st.binary(max_size=60))
def test_settings_of_any_bytes_are_read_or_refused(damaged: bytes) -> None:
    assert is_read_or_refused(damaged)


@pytest.mark.parametrize("damaged", [b"\x81\xa4kind\xa1\xff", b"\x91" * 100_000])
def test_settings_with_broken_text_or_depth_are_refused(damaged: bytes) -> None:
    with pytest.raises(CorruptedError, match="/default/damaged"):
        decode_settings(TopicRow(9, "/default/damaged", "timeline", damaged))


def is_read_or_refused(damaged: bytes) -> bool:
    """Read settings; whatever else is raised is let out."""
    try:
        decode_settings(TopicRow(9, "/default/damaged", "timeline", damaged)).check()
    except CorruptedError as error:
        return "/default/damaged" in str(error)
    return True
