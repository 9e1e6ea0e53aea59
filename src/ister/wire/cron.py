"""Commands of cron rules, which make messages on a timeline again and again."""

from typing import TypeAlias

import msgspec

from ister.base import CronReport
from ister.base.errors import ProtocolError
from ister.wire.tagged import Tagged
from ister.wire.timelines import TimelineRows

# What is done to a rule. It is deleted as a message is, and so is its payload changed alone.
PUT_RULE, UPDATE_RULE, PAUSE_RULE, RESUME_RULE = range(4)


class ChangeCron(Tagged, omit_defaults=True):
    """Make or change a cron rule of a group; the answer is `TimelineChanged` with its version.

    What is behind `version` is that of a rule that is put or updated. Without `catch_up_ms` the
    broker says how long it is.
    """

    topic: str
    group: str
    kind: int
    id: str
    version: int = 0
    expression: str = ""
    zone: str = "UTC"
    jitter_ms: int = 0
    catch_up_ms: int | None = None
    overlap: str = "skip"
    payload: bytes = b""
    attributes: bytes = b""


class ListCron(Tagged):
    """Ask for the rules of a cron topic, behind `after`, a page at a time."""

    topic: str
    after: tuple[int, int] = (-1, 0)
    limit: int = 100


class CronRows(TimelineRows):
    """Rules, told as messages are: due when they fire next, or never: 0. `crons` is a column."""

    crons: list[CronReport] = msgspec.field(default_factory=list)


class PreviewCron(Tagged, omit_defaults=True):
    """Ask when the next messages of a rule will be due; or of an expression, without a rule."""

    topic: str = ""
    id: str = ""
    expression: str = ""
    zone: str = "UTC"
    count: int = 5


class CronPreview(Tagged):
    """When they will be due, and the zone of the rule."""

    zone: str
    due_ms: list[int]


CronCommand: TypeAlias = ChangeCron | ListCron | CronRows | PreviewCron | CronPreview


def crons_of(rows: TimelineRows) -> list[CronReport | None]:
    """Return what is told of the rule that each row is, none of messages."""
    if not isinstance(rows, CronRows):
        return [None] * len(rows.ids)
    if len(rows.crons) != len(rows.ids):
        raise ProtocolError("columns of a listing differ in length")
    return [*rows.crons]
