"""Histories of timelines to be judged, made by hand."""

from tests.e2e.timeline.timeline_checker import Fault, check
from tests.e2e.timeline.timeline_history import (
    DELETE,
    DONE,
    MOVE,
    PUT,
    Act,
    Answer,
    Change,
    Finish,
    Handover,
    History,
)

LEASE_MS = 1_000


class Case:
    """A history that is made a line at a time; all times are milliseconds."""

    def __init__(self) -> None:
        self.history = History()

    def act(
        self,
        at_ms: int,
        *changes: Change,
        answers: list[Answer] | None = None,
        atomic: bool = False,
    ) -> Act:
        """Owners ask for changes, and are told at once; without answers nobody is."""
        told = answers or [None] * len(changes)
        ended_us = at_ms * 1000 + 500 if answers else None
        number = len(self.history.acts)
        act = Act("owner", number, at_ms * 1000, atomic, list(changes), ended_us, told)
        self.history.acts.append(act)
        return act

    def put(self, at_ms: int, due_ms: int, version: Answer, name: str = "a") -> None:
        self.act(at_ms, putting(due_ms, name), answers=[version])

    def move(self, at_ms: int, due_ms: int, version: Answer, wanted: int = 0) -> None:
        change = Change(MOVE, "a", 1, "a/1/0", due_ms, wanted)
        self.act(at_ms, change, answers=None if version is None else [version])

    def delete(self, at_ms: int, answer: Answer = 0, wanted: int = 0) -> None:
        change = Change(DELETE, "a", 1, "a/1/0", 0, wanted)
        self.act(at_ms, change, answers=None if answer is None else [answer])

    def hand(
        self,
        at_ms: int,
        version: int,
        *finishes: Finish,
        due_ms: int = 100,
        consumer: str = "w",
        payload: str = "a/1/0",
        process: str = "p",
        since_ms: int = 0,
        attempt: int = 0,
        letter: bool = False,
    ) -> Handover:
        """A message is handed over, under a lease that began when it was due or handed over.

        By default with the attempt behind the last one, or with that if it is the same consumer's.
        """
        name = payload.partition("/")[0]
        last = next((one for one in self.history.handovers[::-1] if one.payload == payload), None)
        if last is not None and not attempt:
            is_same = last.consumer == consumer and at_ms < last.until_ms
            attempt = last.attempt + (not is_same)
        one = Handover(
            process,
            since_ms * 1000,
            consumer,
            at_ms * 1000,
            name,
            version,
            due_ms,
            max(at_ms, due_ms) + LEASE_MS,
            payload,
            attempt or 1,
            letter=letter,
            finishes=list(finishes),
        )
        self.history.handovers.append(one)
        return one

    def bury(self, at_ms: int, version: int, *finishes: Finish, due_ms: int = 0) -> Handover:
        """A message that was leased once, which is as often as may be, is a dead letter."""
        self.history.max_leases = 1
        due_ms = due_ms or at_ms
        letter = self.hand(at_ms, version, *finishes, due_ms=due_ms, consumer="u", letter=True)
        letter.attempt = max(letter.attempt, 2)
        return letter

    @property
    def faults(self) -> list[Fault]:
        return [anomaly.fault for anomaly in check(self.history)]


def putting(due_ms: int, name: str = "a", number: int = 1) -> Change:
    return Change(PUT, name, number, f"{name}/{number}/0", due_ms)


def finish(kind: str, at_ms: int, answer: str | None = "", time_ms: int = 0) -> Finish:
    ended_us = None if answer is None else at_ms * 1000 + 500
    return Finish(kind, at_ms * 1000, time_ms, ended_us, answer)


def done(at_ms: int, answer: str | None = "") -> Finish:
    return finish(DONE, at_ms, answer)
