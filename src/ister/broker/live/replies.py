"""Requests and replies: finds the way back to who asked."""

from collections.abc import Container
from typing import Protocol

from ister.base.errors import BadBatchError
from ister.broker.scheduling import Steps
from ister.codec import Batch


class ReplySink(Protocol):
    """The way back to a client that asks: a door implements it for one connection."""

    def reply(self, batch: Batch) -> None:
        """Send answers to requests of this client."""

    def no_responder(self, requests: list[int]) -> None:
        """Tell the client that these requests reached nobody."""


class Replies:
    """The clients that may ask, by session."""

    def __init__(self) -> None:
        self.sinks: dict[int, ReplySink] = {}

    def send(self, batch: Batch) -> Steps:
        """Send each answer to the client that asked, one client in each step.

        Answers to clients that left are dropped.
        """
        addresses = batch.replies
        if addresses is None:
            raise BadBatchError("replies without addresses")
        # One pass: a batch may answer as many sessions as it has messages. Mostly it is one.
        slots: dict[int, list[int]] = {}
        for slot, (session, _) in enumerate(addresses):
            slots.setdefault(session, []).append(slot)
        for session, its_slots in slots.items():
            sink = self.sinks.get(session)
            if sink is not None:
                sink.reply(batch.select(its_slots))
                yield

    def report_no_responder(self, batch: Batch, reached: Container[int]) -> None:
        """Tell the askers of the requests of a batch that are not at the slots `reached`."""
        by_session: dict[int, list[int]] = {}
        for slot, (session, request) in enumerate(batch.replies or ()):
            if slot not in reached:
                by_session.setdefault(session, []).append(request)
        for session, requests in by_session.items():
            sink = self.sinks.get(session)
            if sink is not None:
                sink.no_responder(requests)
