"""A client that reconnects needs its secret to have its consumers again, not only its id."""

import pytest
from tests.fuzz.world import NotingTransport

from ister.base.errors import ConsumerNameTakenError
from ister.base.limits import Limits
from ister.broker import Broker
from ister.server.native import NativeDoor
from ister.server.native.owners import owner_of
from ister.testing import VirtualClock
from ister.wire import (
    BeginTransaction,
    Command,
    ErrorReply,
    Hello,
    Subscribe,
    Subscribed,
    control_frame,
    decode_command,
)
from ister.wire.frames import FrameReader, Opcode, body_limits

SECRET = "0123456789abcdef0123456789abcdef"


def subscribe(door: NativeDoor, secret: str) -> Command:
    """Connect and subscribe, always under the same id and name; return the answer."""
    session = door.session()
    transport = NotingTransport()
    session.connection_made(transport)
    session.data_received(control_frame(Hello(client_id="c", secret=secret)))
    command = Subscribe(topic="/default/x", subscription="s", consumer="one", channel=2)
    session.data_received(control_frame(command, sequence=2))
    frames = FrameReader(body_limits(1 << 20)).receive(bytes(transport.written))
    (answer,) = [f[3] for f in frames if f[0] == Opcode.CONTROL and f[2] == 2]
    return decode_command(answer)


@pytest.fixture
async def door() -> NativeDoor:
    broker = Broker(name="b", limits=Limits(), clock=VirtualClock(), random_slot=lambda _: 0)
    return NativeDoor(broker, busy_poll_us=0)


async def test_a_client_with_the_same_secret_has_its_consumer_again(door: NativeDoor) -> None:
    assert isinstance(subscribe(door, SECRET), Subscribed)

    assert isinstance(subscribe(door, SECRET), Subscribed)


def committer(door: NativeDoor, secret: str) -> str:
    """Begin a transaction under the same id; return the client its answer is counted for."""
    session = door.session()
    session.connection_made(NotingTransport())
    session.data_received(control_frame(Hello(client_id="c", secret=secret)))
    command = BeginTransaction(transaction="t", channel=1)
    session.data_received(control_frame(command, sequence=1))
    return session.transactions[1].client


async def test_commits_of_another_client_with_the_same_id_are_counted_apart(
    door: NativeDoor,
) -> None:
    victim = committer(door, SECRET)

    assert committer(door, SECRET) == victim
    assert victim not in (committer(door, ""), committer(door, "guessed"))


@pytest.mark.parametrize(("first", "second"), [(SECRET, ""), (SECRET, "guessed"), ("", "")])
async def test_an_id_alone_does_not_take_over_a_consumer(
    door: NativeDoor, first: str, second: str
) -> None:
    assert isinstance(subscribe(door, first), Subscribed)
    answer = subscribe(door, second)

    assert isinstance(answer, ErrorReply)
    assert answer.code == ConsumerNameTakenError.code


def test_an_id_that_imitates_an_id_with_a_secret_is_another_owner() -> None:
    owner = owner_of(Hello(client_id="c", secret=SECRET), 7)

    assert SECRET not in owner
    assert owner_of(Hello(client_id=owner), 7) != owner
    assert owner_of(Hello(client_id=owner, secret=SECRET), 7) != owner
