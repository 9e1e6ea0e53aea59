"""Readers: what is read, how it ends, where it goes on after a lost connection."""

import pytest
from tests.unit.client.session.wire_end import TOPIC, TOPIC_NUMBER, WireEnd

from ister.base import EARLIEST, LATEST, Origin, Position
from ister.base.errors import ClosedError, IsterError, OffsetGoneError, ProtocolError
from ister.client.session import ReaderChannel
from ister.codec import Batch, encode
from ister.wire import (
    CloseReader,
    Command,
    OpenReader,
    ReaderEnded,
    ReaderOpened,
    TopicNumber,
    deliver_frame,
    error_reply,
)


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


def open_reader(
    end: WireEnd, *, opened: ReaderOpened, start: Position = EARLIEST, until: Position | None = None
) -> ReaderChannel:
    """Open a reader, both ends of it, and announce the topic."""
    channel = end.session.new_channel()
    command = OpenReader(topic=TOPIC, channel=channel, start=start, end=until)
    reader = ReaderChannel(end.session, command)
    replies: list[Command | IsterError] = []
    end.session.receivers.open_reader(reader, replies.append)
    [(sequence, asked)] = end.commands()
    assert asked == OpenReader(topic=TOPIC, channel=channel, start=start, end=until)
    end.tell(opened, sequence=sequence)
    assert replies == [opened]
    end.tell(TopicNumber(number=TOPIC_NUMBER, topic=TOPIC))
    return reader


def deliver(end: WireEnd, reader: ReaderChannel, count: int, start: int) -> None:
    """Send messages to a reader."""
    batch = Batch(b"".join(encode([b"x"] * count)))
    batch.stamp(start, 0)
    end.session.receive(b"".join(deliver_frame(reader.channel, TOPIC_NUMBER, batch)))


def reopened(end: WireEnd) -> OpenReader:
    """Lose the connection, make a new one; returns what the reader asks for then."""
    end.session.disconnected("reset")
    end.connect()
    [(_, command)] = end.commands()
    assert isinstance(command, OpenReader)
    return command


def at(offset: int) -> Position:
    """Return the position of an offset."""
    return Position(origin=Origin.OFFSET, at=offset)


def test_a_reader_gives_credit_once_it_is_open(end: WireEnd) -> None:
    open_reader(end, opened=ReaderOpened(start=0, end=-1))
    [(count, size_bytes)] = end.credit()

    assert count > 0
    assert size_bytes == 16 * 1024 * 1024


def test_batches_of_a_reader_name_their_topic(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=-1))
    deliver(end, reader, 3, start=5)

    batch = reader.inbox.take()
    assert batch is not None
    assert (batch.topic, list(batch.offsets)) == (TOPIC, [5, 6, 7])
    assert reader.inbox.take() is None


def test_everything_is_taken_before_the_end_is_told(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=3), until=LATEST)
    deliver(end, reader, 3, start=0)
    end.tell(ReaderEnded(), channel=reader.channel)

    assert reader.ended
    assert reader.inbox.take() is not None
    with pytest.raises(ClosedError):
        reader.inbox.take()


def test_a_reader_that_broke_off_tells_why(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=3), until=LATEST)
    told = error_reply(OffsetGoneError(TOPIC, 0, 7))
    end.tell(
        ReaderEnded(code=told.code, text=told.text, fields=told.fields), channel=reader.channel
    )

    assert not reader.ended
    with pytest.raises(OffsetGoneError) as caught:
        reader.inbox.take()
    assert caught.value.first_offset == 7


def test_a_reader_goes_on_behind_what_has_come(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=10, end=100), until=LATEST)
    deliver(end, reader, 3, start=10)

    assert reopened(end) == OpenReader(
        topic=TOPIC, channel=reader.channel, start=at(13), end=at(100)
    )


def test_a_reader_that_got_nothing_starts_where_it_was_to_start(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=10, end=-1), start=LATEST)

    assert reopened(end) == OpenReader(topic=TOPIC, channel=reader.channel, start=at(10))


def test_a_reader_goes_on_behind_offsets_that_compaction_left(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=100), until=LATEST)
    batch = Batch(b"".join(encode([b"x", b"y"], offsets=[3, 40])))
    end.session.receive(b"".join(deliver_frame(reader.channel, TOPIC_NUMBER, batch)))

    assert reopened(end).start == at(41)


def test_a_reader_that_cannot_go_on_tells_why(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=-1))
    end.session.disconnected("reset")
    end.connect()
    [(sequence, _)] = end.commands()
    end.tell(error_reply(OffsetGoneError(TOPIC, 0, 7)), sequence=sequence)

    with pytest.raises(OffsetGoneError):
        reader.inbox.take()
    assert end.session.receivers.readers == {}


def test_a_reader_that_has_ended_is_not_opened_again(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=3), until=LATEST)
    end.tell(ReaderEnded(), channel=reader.channel)
    end.session.disconnected("reset")
    end.connect()

    assert end.commands() == []


def test_a_reader_is_closed_once(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=-1))
    end.frames()
    end.session.receivers.close_reader(reader)
    end.session.receivers.close_reader(reader)

    assert [command for _, command in end.commands()] == [CloseReader(channel=reader.channel)]
    deliver(end, reader, 1, start=0)


def test_a_topic_with_partitions_opens_nothing(end: WireEnd) -> None:
    open_reader(end, opened=ReaderOpened(start=0, end=0, partitions=3))

    assert end.session.receivers.readers == {}
    assert end.credit() == []


def test_a_reader_is_sent_no_more_than_it_has_credit_for(end: WireEnd) -> None:
    reader = open_reader(end, opened=ReaderOpened(start=0, end=-1))
    reader.inbox._credit_left = 2

    with pytest.raises(ProtocolError):
        deliver(end, reader, 3, start=0)
