"""What the commands of cron rules do, and what they are answered."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ister.base import parse_plain
from ister.base.errors import BadRequestError, IsterError, ProtocolError
from ister.base.limits import TIMELINE_PAGE_MAX
from ister.server.native.timelines import (
    NUMBER_MAX,
    Reply,
    check_attributes,
    check_ids,
    check_numbers,
    fitting,
    rule_rows,
)
from ister.timeline import PREVIEW_COUNT_MAX, CronRule, RuleRow, parse_rule
from ister.wire import (
    PAUSE_RULE,
    PUT_RULE,
    RESUME_RULE,
    UPDATE_RULE,
    ChangeCron,
    CronPreview,
    ListCron,
    PreviewCron,
    TimelineChanged,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession


def change(session: "NativeSession", command: ChangeCron, reply: Reply) -> None:
    """Make or change a rule; the answer comes when the store has it."""
    parse_plain(command.group, "a group")
    check_ids([command.id])
    check_numbers((command.version,), NUMBER_MAX, "a version")
    if command.attributes:
        check_attributes(command.attributes)
    rules = session.broker.timelines.rules_to_change(command.topic)
    group, version = command.group, command.version

    def done(found: int | IsterError) -> None:
        reply(found if isinstance(found, IsterError) else TimelineChanged(versions=[found]))

    if command.kind in (PAUSE_RULE, RESUME_RULE):
        act = rules.pause if command.kind == PAUSE_RULE else rules.resume
        act(command.id, group=group, version=version, done=done)
        return
    if command.kind not in (PUT_RULE, UPDATE_RULE):
        raise ProtocolError(f"kind of change {command.kind} is not known")
    rule = _rule_of(command)
    payload, attributes = command.payload, command.attributes
    if command.kind == PUT_RULE:
        rules.put(
            command.id, group=group, rule=rule, payload=payload, attributes=attributes, done=done
        )
    else:
        rules.update(
            command.id,
            group=group,
            version=version,
            rule=rule,
            payload=payload,
            attributes=attributes,
            done=done,
        )


def page(session: "NativeSession", command: ListCron, reply: Reply) -> None:
    """Answer with a page of rules: as many as fit into it."""
    if not all(-1 <= number <= NUMBER_MAX for number in command.after):
        raise BadRequestError(f"{command.after} is no place among rules")
    limit = min(max(command.limit, 1), TIMELINE_PAGE_MAX)

    def done(found: list[RuleRow] | IsterError) -> None:
        if isinstance(found, IsterError):
            reply(found)
            return
        told = found[: len(fitting([row for row, _ in found]))]
        is_last = len(found) < limit and len(told) == len(found)
        last = None if is_last else (told[-1].row.position_ms, told[-1].row.seq)
        reply(rule_rows(told, last))

    session.broker.timelines.get_rules(command.topic).page(command.after, limit, done)


def preview(session: "NativeSession", command: PreviewCron, reply: Reply) -> None:
    """Answer with when messages will be due."""
    check_numbers((command.count,), PREVIEW_COUNT_MAX, "the number of times")

    def done(found: tuple[str, list[int]] | IsterError) -> None:
        if isinstance(found, IsterError):
            reply(found)
        else:
            reply(CronPreview(zone=found[0], due_ms=found[1]))

    timelines = session.broker.timelines
    if command.id:
        check_ids([command.id])
        timelines.get_rules(command.topic).preview(command.id, command.count, done)
    else:
        timelines.preview(parse_rule(command.expression, command.zone), command.count, done)


def _rule_of(command: ChangeCron) -> CronRule:
    return parse_rule(
        command.expression,
        command.zone,
        jitter_ms=command.jitter_ms,
        catch_up_ms=command.catch_up_ms,
        overlap=command.overlap,
    )


# Each action takes its own command type, which the table's key guarantees.
CRON_ACTIONS: dict[type, Callable[["NativeSession", Any, Reply], None]] = {
    ChangeCron: change,
    ListCron: page,
    PreviewCron: preview,
}
