"""A session with one consumer of a timeline: the test plays the broker."""

from typing import Any

from tests.unit.client.session.wire_end import WireEnd

from ister.base.errors import (
    IsterError,
)
from ister.client.session import Held, TimelineChannel
from ister.wire import (
    Command,
    ConsumeTimeline,
    Done,
    LeasesRevoked,
    RevokeLeases,
    TimelineDue,
    TimelineOpened,
)

CREDIT = 10
DUE_MS = 5_000


class TimelineEnd(WireEnd):
    """A session with one open consumer; the broker's clock is that of the client."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[int | IsterError] = []
        self.connect()
        command = ConsumeTimeline(
            topic="/default/r",
            consumer="w",
            channel=self.session.new_channel(),
            lease_ms=60_000,
            prefetch_ms=500,
            credit=CREDIT,
        )
        self.channel = TimelineChannel(self.session, command)
        self.session.timelines.open(self.channel, lambda _: None)
        self.answer(TimelineOpened(now_us=0), ConsumeTimeline)

    def answer(self, reply: Command, to: type) -> Any:
        """Answer the one command of a type that the client has sent, and return it."""
        found = None
        for sequence, command in self.commands():
            if isinstance(command, to):
                found = command
                self.tell(reply, sequence=sequence)
        assert found is not None, to
        return found

    def due(self, *ids: str, due_ms: int = DUE_MS, **columns: Any) -> None:
        """Deliver messages."""
        count = len(ids)
        fields: dict[str, Any] = {
            "versions": [7] * count,
            "due_ms": [due_ms] * count,
            "until_ms": [due_ms + 60_000] * count,
            "attempts": [1] * count,
            "payloads": [b"x"] * count,
        }
        notice = TimelineDue(ids=list(ids), **(fields | columns))
        self.tell(notice, channel=self.channel.channel)

    def take(self, at_ms: int = DUE_MS) -> str | None:
        """Take the next message, and return its id."""
        held = self.channel.take(at_ms * 1000)
        return None if held is None else held.id

    def get(self, at_ms: int = DUE_MS) -> Held:
        """Take the next message, which is there."""
        held = self.channel.take(at_ms * 1000)
        assert held is not None
        return held

    def finish(self, kind: int, held: Held, time_ms: int = 0) -> None:
        """Say what becomes of a message."""
        self.channel.finish(kind, held, time_ms, self.outcomes.append)

    def revoke(self, *ids: str, version: int = 7) -> list[bool]:
        """Ask for messages, and return which of them the application has."""
        self.commands()
        notice = RevokeLeases(ids=list(ids), versions=[version] * len(ids))
        self.tell(notice, channel=self.channel.channel)
        kept: list[bool] = self.answer(Done(), LeasesRevoked).kept
        return kept

    def reconnect(self, now_us: int = 0) -> None:
        """Lose the connection, and have another one."""
        self.session.disconnected("test")
        self.connect()
        self.answer(TimelineOpened(now_us=now_us), ConsumeTimeline)
