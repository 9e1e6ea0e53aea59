"""What owners and consumers of a timeline did and were told, as each process has written it down.

A process writes a line before it asks for something and one when it is answered, straight to the
system, so that a kill loses none. Times are microseconds of the machine's clock, which is also the
broker's. What was asked for and never answered may have been done or not.

A message has the name `id`, and a number in that name: the first put of an id makes number 1, the
second, when that one is gone, number 2. Payloads say both, and how often they were updated. Among
dead letters, where several of a name may be at once, the id may be another one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PUT, MOVE, UPDATE, DELETE = "put", "move", "update", "delete"
DONE, EXTEND, RELEASE = "done", "extend", "release"

# The version after a change (0: made, but it has none), why it was refused, or nobody knows.
Answer = int | str | None


def payload_of(name: str, number: int, updates: int) -> str:
    """Return the payload of a message that was updated so often."""
    return f"{name}/{number}/{updates}"


class Change(NamedTuple):
    """What an owner asks for. `version` 0 is any."""

    kind: str
    id: str
    number: int
    payload: str
    due_ms: int
    version: int = 0
    # Of a put.
    priority: int = 0


@dataclass(slots=True)
class Act:
    """Changes that were asked for together."""

    process: str
    number: int
    began_us: int
    atomic: bool
    changes: list[Change]
    ended_us: int | None = None
    # One for each change.
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.answers:
            self.answers = [None] * len(self.changes)


@dataclass(slots=True)
class Finish:
    """What a consumer said about a message. `time_ms`: a span of EXTEND, a time of RELEASE."""

    kind: str
    began_us: int
    time_ms: int = 0
    ended_us: int | None = None
    # Empty: it was made.
    answer: str | None = None

    @property
    def made(self) -> bool:
        """Whether the consumer was told so."""
        return self.answer == ""

    @property
    def may_be_made(self) -> bool:
        """Whether it was, or may have been: one that was told twice finds a message gone."""
        return self.answer in ("", None, "MessageNotFoundError")


@dataclass(slots=True)
class Handover:
    """A message that an application was given; `letter` if it was among the dead letters."""

    process: str
    # When the process began, and as which consumer.
    since_us: int
    consumer: str
    at_us: int
    id: str
    version: int
    due_ms: int
    until_ms: int
    payload: str
    # How often it was leased, with this time.
    attempt: int = 1
    priority: int = 0
    letter: bool = False
    finishes: list[Finish] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The id that it was put with."""
        return self.payload.rpartition("/")[0].rpartition("/")[0] if self.letter else self.id

    @property
    def number(self) -> int:
        """Which of its name it is; 0 when the payload is not one of ours."""
        name, _, rest = self.payload.rpartition("/")[0].rpartition("/")
        return int(rest) if name == self.name and rest.isdecimal() else 0

    def __str__(self) -> str:
        return (
            f"{'letter ' if self.letter else ''}{self.payload} to {self.consumer}"
            f" ({self.process}) at {self.at_us} µs, version {self.version}, due {self.due_ms},"
            f" lease {self.attempt} until {self.until_ms}"
        )


@dataclass(slots=True)
class History:
    """Everything that happened."""

    acts: list[Act] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    # When a consumer was opened by a process that knew none of its leases, and its name: those that
    # the name had end then.
    openings: list[tuple[int, str]] = field(default_factory=list)
    # How often a message is leased before it is a dead letter; 0 is without end.
    max_leases: int = 0


def read_history(files: Iterable[Path], max_leases: int = 0) -> History:
    """Read what processes have written, one file each."""
    history = History(max_leases=max_leases)
    for file in files:
        _Reader(file.stem, history).read(file.read_text().splitlines())
    history.acts.sort(key=lambda act: act.began_us)
    history.handovers.sort(key=lambda handover: handover.at_us)
    return history


class _Reader:
    """Puts together the lines of one process."""

    def __init__(self, process: str, history: History) -> None:
        self._process = process
        self._history = history
        self._since_us = 0
        self._consumer = ""
        self._letters = False
        self._acts: dict[int, Act] = {}
        self._handovers: dict[int, Handover] = {}
        self._finishes: dict[tuple[int, str], Finish] = {}

    def read(self, lines: Iterable[str]) -> None:
        """Take in all lines; the last one may be cut."""
        for line in lines:
            try:
                what, *values = json.loads(line)
            except ValueError:
                continue
            getattr(self, f"_on_{what}")(*values)

    def _on_begin(self, at_us: int, consumer: str, letters: bool) -> None:
        self._since_us, self._consumer, self._letters = at_us, consumer, letters
        self._history.openings.append((at_us, consumer))

    def _on_act(self, at_us: int, number: int, atomic: bool, changes: list[list[object]]) -> None:
        made = [Change(*change) for change in changes]  # type: ignore[arg-type]
        act = Act(self._process, number, at_us, atomic, made)
        self._acts[number] = act
        self._history.acts.append(act)

    def _on_told(self, at_us: int, number: int, answers: list[Answer]) -> None:
        act = self._acts[number]
        act.ended_us, act.answers = at_us, answers

    def _on_handed(self, at_us: int, number: int, *values: object) -> None:
        handover = Handover(
            self._process,
            self._since_us,
            self._consumer,
            at_us,
            *values,  # type: ignore[arg-type]
        )
        handover.letter = self._letters
        self._handovers[number] = handover
        self._history.handovers.append(handover)

    def _on_finish(self, at_us: int, number: int, kind: str, time_ms: int) -> None:
        finish = Finish(kind, at_us, time_ms)
        self._finishes[number, kind] = finish
        self._handovers[number].finishes.append(finish)

    def _on_finished(self, at_us: int, number: int, kind: str, answer: str | None) -> None:
        finish = self._finishes[number, kind]
        finish.ended_us, finish.answer = at_us, answer
