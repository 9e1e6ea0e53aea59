"""Judges what owners and consumers of a timeline saw while everything was killed again and again.

Versions are what puts it in order: every change and every lease has one, and they rise. So what a
message must look like when it is handed over follows from the changes of lower versions that were
acknowledged; of a change whose answer was lost both is allowed. The broker has been left with no
messages in the end, and ran on the clock of the machine that the times are of.

Each fault says what promise was broken:

    early          a message was handed over before it was due
    cancelled      a message was handed over after its deletion was acknowledged
    outdated       a message was handed over as it was before a change that was acknowledged
    wrong          due time or payload are not those of the last change
    unexpected     a message that nobody put, or whose put was refused, was handed over
    lost           a message never came, or never came again though nobody had finished it
    again          a message came again though it was acknowledged to be done
    shared         a message was handed over while another consumer had a lease of it
    expired        a message was handed over when its lease was over
    stale          a consumer whose lease was over has finished, kept or released a message
    claimed        a consumer whose lease was over is told that it has finished what was gone
    taken          an owner has changed a message that a consumer had a lease of
    unconditional  a change was made though the message was not at the version asked for
    torn           a transaction was made in part
    reused         a version was given twice
    worn           a message was handed over that was leased as often as may be, and is no letter
    miscounted     a message is a dead letter, or at an attempt, and was not leased so often
    risen          a message that is a dead letter was handed over or changed in its topic
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

from tests.e2e.timeline.timeline_history import (
    DELETE,
    DONE,
    EXTEND,
    MOVE,
    PUT,
    RELEASE,
    UPDATE,
    Act,
    Change,
    Finish,
    Handover,
    History,
)

NEVER_US = 2**62
# A process may be put to sleep between being handed a message and noting that.
PAUSE_US = 100_000
# No consumer asks for a shorter lease.
LEASE_US_MIN = 500_000


class Fault(StrEnum):
    """What promise was broken; see the module."""

    EARLY = "early"
    CANCELLED = "cancelled"
    OUTDATED = "outdated"
    WRONG = "wrong"
    UNEXPECTED = "unexpected"
    LOST = "lost"
    AGAIN = "again"
    SHARED = "shared"
    EXPIRED = "expired"
    STALE = "stale"
    CLAIMED = "claimed"
    TAKEN = "taken"
    UNCONDITIONAL = "unconditional"
    TORN = "torn"
    REUSED = "reused"
    WORN = "worn"
    MISCOUNTED = "miscounted"
    RISEN = "risen"


class Anomaly(NamedTuple):
    """One broken promise."""

    fault: Fault
    detail: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.detail}"


class Deed(NamedTuple):
    """One change, and what came of it."""

    # Rises in the order in which the owner asked.
    order: int
    change: Change
    began_us: int
    ended_us: int
    version: int
    # Told to be made, or maybe made. Neither: refused.
    made: bool
    maybe: bool

    def __str__(self) -> str:
        kind, payload, due_ms = self.change.kind, self.change.payload, self.change.due_ms
        return f"{kind} of {payload} for {due_ms}, version {self.version}, by {self.ended_us} µs"


@dataclass(slots=True)
class Story:
    """What happened to one message, in order."""

    deeds: list[Deed] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    openings: list[tuple[int, str]] = field(default_factory=list)

    def made(self, *kinds: str) -> list[Deed]:
        """Return the changes of some kinds that were acknowledged."""
        return [deed for deed in self.deeds if deed.made and deed.change.kind in kinds]

    def possible(self, *kinds: str) -> list[Deed]:
        """Return the changes of some kinds that were made, or may have been."""
        return [
            deed for deed in self.deeds if (deed.made or deed.maybe) and deed.change.kind in kinds
        ]

    @property
    def letters(self) -> list[Handover]:
        """Return when it was handed over as a dead letter."""
        return [handover for handover in self.handovers if handover.letter]

    @property
    def buried_ms(self) -> int:
        """Return when it became a dead letter: it was due then, until one released it."""
        return min(letter.due_ms for letter in self.letters)


# The stories of an id, by number.
Stories = dict[int, Story]


def check(history: History) -> list[Anomaly]:
    """Return every promise that was broken."""
    stories = _stories(history)
    anomalies = [*_check_versions(history)]
    for numbers in stories.values():
        for number, story in numbers.items():
            anomalies += _check_story(story, successors_of(numbers, number))
            anomalies += _check_attempts(story, history.max_leases)
    for act in history.acts:
        anomalies += _check_whole(act, stories)
    return anomalies


def _stories(history: History) -> dict[str, Stories]:
    stories: dict[str, Stories] = defaultdict(
        lambda: defaultdict(lambda: Story(openings=history.openings))
    )
    order = 0
    for act in history.acts:
        for change, answer in zip(act.changes, act.answers, strict=True):
            order += 1
            version = answer if isinstance(answer, int) else 0
            made, maybe = isinstance(answer, int), answer is None
            ended_us = NEVER_US if act.ended_us is None else act.ended_us
            deed = Deed(order, change, act.began_us, ended_us, version, made, maybe)
            stories[change.id][change.number].deeds.append(deed)
    for handover in sorted(history.handovers, key=lambda one: one.version):
        stories[handover.name][handover.number].handovers.append(handover)
    return stories


def successors_of(numbers: Stories, number: int) -> list[Story]:
    """Return the stories of the same id that came after a message."""
    return [story for later, story in numbers.items() if later > number]


def _check_story(story: Story, successors: list[Story]) -> Iterator[Anomaly]:
    for handover in story.handovers:
        yield from _check_early(handover)
        if is_expired(handover):
            # Whatever else is wrong with it follows from that: it was others' by then.
            if handover.at_us >= handover.until_ms * 1000 + PAUSE_US:
                yield Anomaly(Fault.EXPIRED, str(handover))
            continue
        yield from _check_origin(story, handover, successors)
        if not handover.letter:
            yield from _check_outdated(story, handover)
        yield from _check_content(story, handover)
        yield from _check_finishes(story, handover)
        yield from _check_taken(story, handover)
    yield from _check_shared(story)
    yield from _check_risen(story)
    yield from _check_end(story, successors)
    yield from _check_conditions(story)


# Each time a message is handed over


def is_expired(handover: Handover) -> bool:
    """Return whether a message was noted to be handed over when its lease was over."""
    return handover.at_us >= handover.until_ms * 1000


def _check_early(handover: Handover) -> Iterator[Anomaly]:
    early_us = handover.due_ms * 1000 - handover.at_us
    if early_us > 0:
        yield Anomaly(Fault.EARLY, f"by {early_us} µs: {handover}")


def _check_origin(story: Story, handover: Handover, successors: list[Story]) -> Iterator[Anomaly]:
    puts = [put for put in story.possible(PUT) if put.began_us <= handover.at_us]
    if not puts:
        yield Anomaly(Fault.UNEXPECTED, str(handover))
    for end in story.made(DELETE):
        if handover.at_us > end.ended_us:
            yield Anomaly(Fault.CANCELLED, f"{handover}, after {end}")
    # Its id is free for another one as soon as it is a dead letter.
    left_us = story.buried_ms * 1000 if handover.letter else handover.at_us
    for put in (put for successor in successors for put in successor.made(PUT)):
        if left_us > put.ended_us:
            yield Anomaly(Fault.CANCELLED, f"{handover}, after {put}")


def _check_outdated(story: Story, handover: Handover) -> Iterator[Anomaly]:
    for deed in story.made(PUT, MOVE, UPDATE):
        if handover.at_us > deed.ended_us and handover.version < deed.version:
            yield Anomaly(Fault.OUTDATED, f"{handover}, after {deed}")


def _check_content(story: Story, handover: Handover) -> Iterator[Anomaly]:
    dues = _possible(story, handover, MOVE)
    expected_ms = {deed.change.due_ms for deed in dues}
    if handover.letter:
        expected_ms = {story.buried_ms}
    expected_ms |= _released_ms(story, handover, dues)
    if dues and handover.due_ms not in expected_ms:
        yield Anomaly(Fault.WRONG, f"{handover}, and not due {sorted(expected_ms)}")
    payloads = {deed.change.payload for deed in _possible(story, handover, UPDATE)}
    if payloads and handover.payload not in payloads:
        yield Anomaly(Fault.WRONG, f"{handover}, and not {sorted(payloads)}")
    priorities = {deed.change.priority for deed in story.possible(PUT)}
    if priorities and handover.priority not in priorities:
        yield Anomaly(Fault.WRONG, f"{handover} of priority {handover.priority}, not {priorities}")
    # The first of a name finds that free among the dead letters; the next may have to take another.
    if handover.id != handover.name:
        version = handover.id.removeprefix(f"{handover.name}-")
        if handover.number == 1 or not version.isdecimal():
            yield Anomaly(Fault.WRONG, f"{handover} with id {handover.id}")


def _possible(story: Story, handover: Handover, kind: str) -> list[Deed]:
    """Return the changes that a message may have its time, or its payload, from.

    The last that was acknowledged before it was leased, then those that nobody knows of.
    """
    known = [deed for deed in story.made(PUT, kind) if deed.version < handover.version]
    base = max(known, key=lambda deed: deed.version, default=None)
    return [
        deed
        for deed in story.possible(PUT, kind)
        if deed is base
        or (
            deed.maybe
            and deed.began_us <= handover.at_us
            and (base is None or deed.order > base.order)
        )
    ]


def _released_ms(story: Story, handover: Handover, dues: list[Deed]) -> set[int]:
    """Return the times that consumers may have given a message back for, after all `dues`.

    One that is told that its lease was lost may have been the one to release it, when it asked
    again on another connection.
    """
    start = max(deed.version for deed in dues) if dues else 0
    return {
        finish.time_ms
        for other in story.handovers
        if start < other.version < handover.version and other.letter == handover.letter
        for finish in other.finishes
        if finish.kind == RELEASE
    }


# Leases


class Term(NamedTuple):
    """Until when a lease lasts, as its holder knows: for sure, and at the longest."""

    surely_us: int
    at_most_us: int


def term_of(handover: Handover) -> Term:
    """Return how long a message was its consumer's, had it not been finished."""
    surely_us = at_most_us = handover.until_ms * 1000
    for finish in handover.finishes:
        if finish.kind != EXTEND:
            continue
        span_us = finish.time_ms * 1000
        last_us = span_us + (NEVER_US if finish.ended_us is None else finish.ended_us)
        # The broker counts in whole milliseconds.
        first_us = finish.began_us // 1000 * 1000 + span_us
        if finish.made:
            surely_us, at_most_us = first_us, last_us
        else:
            surely_us = min(surely_us, first_us)
            at_most_us = max(at_most_us, last_us)
    return Term(surely_us, at_most_us)


def alive_until_us(story: Story, handover: Handover) -> int:
    """Return until when, for sure, nobody else may have a message.

    A process that opens the consumer anew ends its leases.
    """
    ends = (
        finish.began_us
        for other in story.handovers
        if other.consumer == handover.consumer and other.version >= handover.version
        for finish in other.finishes
        if finish.kind != EXTEND
    )
    openings = (
        at_us
        for at_us, consumer in story.openings
        if consumer == handover.consumer and at_us > handover.since_us
    )
    return min(term_of(handover).surely_us, *ends, *openings, NEVER_US)


def _check_shared(story: Story) -> Iterator[Anomaly]:
    for first, second in combinations(story.handovers, 2):
        second_us = second.at_us
        if second.letter and not first.letter:
            # The millisecond in which it was taken away.
            second_us = story.buried_ms * 1000 + 999
        # One that is connected again has its leases again.
        if first.consumer != second.consumer and second_us < alive_until_us(story, first):
            yield Anomaly(Fault.SHARED, f"{second}, while {first}")


def _check_taken(story: Story, handover: Handover) -> Iterator[Anomaly]:
    end_us = alive_until_us(story, handover)
    for deed in story.made(MOVE, UPDATE, DELETE):
        if handover.at_us < deed.began_us and deed.ended_us < end_us:
            yield Anomaly(Fault.TAKEN, f"{deed}, while {handover}")


def _check_finishes(story: Story, handover: Handover) -> Iterator[Anomaly]:
    for finish in handover.finishes:
        if not finish.made:
            continue
        others = [
            other
            for other in story.handovers
            if other.version > handover.version
            and other.consumer != handover.consumer
            and other.at_us < finish.began_us
        ]
        late = finish.kind != EXTEND and finish.began_us >= term_of(handover).at_most_us
        if late or others:
            fault = Fault.CLAIMED if _was_gone(story, handover, finish) else Fault.STALE
            told = f"; it was others': {', '.join(map(str, others))}" if others else ""
            yield Anomaly(fault, f"{finish.kind} at {finish.began_us} µs of {handover}{told}")
        if finish.kind == DONE:
            yield from _check_again(story, handover, finish)


def _was_gone(story: Story, handover: Handover, finish: Finish) -> bool:
    """Return whether a message that a consumer was told to have finished may have been gone."""
    assert finish.ended_us is not None
    ends = [deed.began_us for deed in story.possible(DELETE)]
    for other in story.handovers:
        if other is not handover:
            ends += [one.began_us for one in other.finishes if one.kind == DONE and one.may_be_made]
    return finish.kind == DONE and any(end_us < finish.ended_us for end_us in ends)


def _check_again(story: Story, done: Handover, finish: Finish) -> Iterator[Anomaly]:
    assert finish.ended_us is not None
    for handover in story.handovers:
        # Who was replaced by another process of its name may hear of that late.
        replaced = handover.consumer == done.consumer and handover.since_us < done.since_us
        if handover.at_us > finish.ended_us and not replaced and not is_expired(handover):
            yield Anomaly(Fault.AGAIN, f"{handover}, done by {done} at {finish.ended_us} µs")


# Dead letters


def _check_attempts(story: Story, max_leases: int) -> Iterator[Anomaly]:
    buried = False
    for handover in story.handovers:
        worn = 0 < max_leases < handover.attempt
        buried |= handover.letter
        if worn and not buried:
            yield Anomaly(Fault.WORN, f"{handover}, of {max_leases}")
        if handover.letter and not worn:
            yield Anomaly(Fault.MISCOUNTED, f"{handover}, of {max_leases}")
    # Nobody may have noted a lease, whose holder was killed; but then it took its time, or was
    # ended by the next process of that name.
    puts = story.possible(PUT)
    since_us = puts[0].began_us if puts else 0
    attempt = 0
    holder = ""
    for handover in story.handovers:
        unseen = handover.attempt - attempt - 1
        is_same = unseen == -1 and handover.consumer == holder
        between_us = max(0, handover.at_us - since_us)
        openings = sum(since_us < at_us <= handover.at_us for at_us, _ in story.openings)
        least_us = max(unseen - openings, 0) * LEASE_US_MIN
        if not is_same and not (unseen >= 0 and least_us <= between_us):
            yield Anomaly(Fault.MISCOUNTED, f"{handover}, after lease {attempt} at {since_us} µs")
        since_us, attempt = alive_until_us(story, handover), handover.attempt
        holder = handover.consumer


def _check_risen(story: Story) -> Iterator[Anomaly]:
    letter = next(iter(story.letters), None)
    if letter is None:
        return
    for handover in story.handovers:
        if handover.version > letter.version and not handover.letter:
            yield Anomaly(Fault.RISEN, f"{handover}, after {letter}")
    for deed in story.made(PUT, MOVE, UPDATE):
        if deed.version > letter.version:
            yield Anomaly(Fault.RISEN, f"{deed}, after {letter}")


# What becomes of messages


def _check_end(story: Story, successors: list[Story]) -> Iterator[Anomaly]:
    puts = story.made(PUT)
    if not puts or story.possible(DELETE):
        return
    last = max(story.made(PUT, MOVE, UPDATE), key=lambda deed: deed.version)
    if not any(handover.version > last.version for handover in story.handovers):
        yield Anomaly(Fault.LOST, f"never handed over after {last}")
        return
    tries = [
        (finish, finish.began_us < term_of(handover).at_most_us)
        for handover in story.handovers
        for finish in handover.finishes
        if finish.kind == DONE
    ]
    # Who comes too late finds a message gone, too, and has not finished it.
    finished = any(finish.made or (finish.may_be_made and in_time) for finish, in_time in tries)
    # Who has finished a message, and asks again, may find the next one of that id: one that was
    # acknowledged, or handed over though its owner was killed before it was told.
    is_followed = any(other.made(PUT) or other.handovers for other in successors)
    if not finished and not (tries and is_followed):
        yield Anomaly(Fault.LOST, f"nobody has finished it: {story.handovers[-1]}")


def _check_conditions(story: Story) -> Iterator[Anomaly]:
    for deed in story.made(MOVE, UPDATE, DELETE):
        wanted = deed.change.version
        if not wanted:
            continue
        changed = [
            str(other)
            for other in story.made(PUT, MOVE, UPDATE)
            if other.version > wanted and other.order < deed.order
        ]
        leased = [
            str(handover)
            for handover in story.handovers
            if handover.version > wanted and handover.at_us < deed.began_us
        ]
        if changed or leased:
            later = "; ".join(changed + leased)
            yield Anomaly(Fault.UNCONDITIONAL, f"{deed} wanted version {wanted}, after {later}")


def _check_whole(act: Act, stories: dict[str, Stories]) -> Iterator[Anomaly]:
    """Of a transaction that was answered the other checks find each change made, or not."""
    if not act.atomic or any(answer is not None for answer in act.answers):
        return
    signs = {change: _was_made(change, stories[change.id][change.number]) for change in act.changes}
    if {True, False} <= set(signs.values()):
        told = ", ".join(
            f"{change.kind} of {change.payload}: {'?' if sign is None else sign}"
            for change, sign in signs.items()
        )
        yield Anomaly(Fault.TORN, f"{act.process} at {act.began_us} µs: {told}")


def _was_made(change: Change, story: Story) -> bool | None:
    """Return whether a change that nobody was told of was made, as far as one can see.

    Its owner has not touched the message again.
    """
    match change.kind:
        case "put":
            return bool(story.handovers)
        case "move":
            if change.due_ms in _other_dues(change, story):
                return None  # By chance: being due then is no sign of it.
            if any(handover.due_ms == change.due_ms for handover in story.handovers):
                return True
            # It may have become a dead letter before anybody was handed it at that time.
            return None if story.letters else False
        case "update":
            return any(handover.payload == change.payload for handover in story.handovers)
        case _:
            finishes = [finish for handover in story.handovers for finish in handover.finishes]
            if any(finish.kind == DONE and finish.made for finish in finishes):
                return False
            return None if story.handovers else True


def _other_dues(change: Change, story: Story) -> set[int]:
    """Return when a message may have been due but for a change."""
    dues = {deed.change.due_ms for deed in story.possible(PUT, MOVE) if deed.change != change}
    finishes = [finish for handover in story.handovers for finish in handover.finishes]
    return dues | {finish.time_ms for finish in finishes if finish.kind == RELEASE}


def _check_versions(history: History) -> Iterator[Anomaly]:
    seen: dict[int, str] = {}
    for act in history.acts:
        for change, answer in zip(act.changes, act.answers, strict=True):
            if isinstance(answer, int) and answer:
                yield from _claim(seen, answer, f"{change.kind} of {change.id}, {act.number}")
    for handover in history.handovers:
        # A lease that is handed back to who had it is the same.
        whose = f"{handover.id} with {handover.consumer}"
        yield from _claim(seen, handover.version, whose)


def _claim(seen: dict[int, str], version: int, whose: str) -> Iterator[Anomaly]:
    other = seen.setdefault(version, whose)
    if other != whose:
        yield Anomaly(Fault.REUSED, f"version {version}: {other}, and {whose}")
