"""Control commands that are operations: what each asks for, and what it is answered.

Commands that open, use or close a channel of their connection are not here: see `commands`. Of
these, `RIGHTS` says what their caller has to be allowed.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET, structs

from ister import operations, wire
from ister.base.errors import BadRequestError, IsterError
from ister.operations import PAGE_MAX, Operation, Right
from ister.server.operations import Caller, Done

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession
    from ister.server.native.streams import Steps

Reply = Callable[[wire.Command | IsterError], object]


class Control(NamedTuple):
    """How a command is translated."""

    operation: Callable[[Any], Operation[Any]]
    reply: Callable[[Any], wire.Command]


def ask(
    session: "NativeSession", control: Control, command: wire.Command, reply: Reply
) -> "Steps | None":
    """Have the operation of a command carried out, and reply with its answer."""

    def done(answer: Any) -> None:
        reply(answer if isinstance(answer, IsterError) else control.reply(answer))

    def in_task(work: Any, done: Done[Any]) -> None:
        # It holds on to the definition of a schema.
        session.door.run(work, done, len(getattr(command, "definition", b"")))

    dispatcher, operation = session.door.dispatcher, control.operation(command)
    return dispatcher.start(operation, _caller(session), done, in_task)


def _same(operation: type[Operation[Any]], **others: str) -> Callable[[Any], Operation[Any]]:
    """Return what makes a command an operation of the same fields; `others` have other names."""

    def translate(command: wire.Command) -> Operation[Any]:
        fields = structs.asdict(command)
        given = {others.get(name, name): value for name, value in fields.items()}
        return operation(**{name: value for name, value in given.items() if value is not UNSET})

    return translate


def _done(_: object) -> wire.Command:
    return wire.Done()


def _bound(answer: Any) -> wire.Command:
    return wire.SchemaBound(binding=answer)


def _found(answer: Any) -> wire.Command:
    return wire.SchemaFound(schema=answer)


def _update_subscription(command: wire.UpdateSubscription) -> Operation[Any]:
    fields = structs.asdict(command)
    chosen = fields.pop("chosen")
    given, expire_after_ms = chosen.given, chosen.expire_after_ms
    return operations.UpdateSubscription(**fields, given=given, expire_after_ms=expire_after_ms)


def _pause(command: wire.PauseSubscription) -> Operation[Any]:
    kind = operations.PauseSubscription if command.paused else operations.ResumeSubscription
    return kind(command.topic, command.subscription)


def _get_schema(command: wire.GetSchema) -> Operation[Any]:
    if bool(command.subject) == bool(command.schema_id):
        raise BadRequestError("name a schema by its subject, or by its id")
    if command.subject:
        return operations.DescribeVersion(command.subject, str(command.version or "latest"))
    return operations.DescribeSchemaId(command.schema_id, command.version)


def _delete_schema(command: wire.DeleteSchema) -> Operation[Any]:
    if command.version:
        return operations.DeleteVersion(command.subject, command.version)
    return operations.DeleteSubject(command.subject)


def _without_mode(operation: type[Operation[Any]]) -> Callable[[Any], Operation[Any]]:
    # An empty one is as the subject has it.
    return lambda command: operation(**{**structs.asdict(command), "mode": command.mode or None})


def _registered(made: operations.Made[operations.RegisteredSchema]) -> wire.Command:
    return wire.SchemaRegistered(**structs.asdict(made.value), is_new=made.is_new)


CONTROLS: dict[type[wire.Command], Control] = {
    wire.CreateTopic: Control(_same(operations.CreateTopic), _done),
    wire.UpdateTopic: Control(_same(operations.UpdateTopic), _done),
    wire.DeleteTopic: Control(_same(operations.DeleteTopic), _done),
    wire.PurgeTopic: Control(
        lambda asked: operations.PurgeTopic(
            asked.topic, None if asked.before < 0 else asked.before
        ),
        lambda answer: wire.Purged(messages=answer.messages),
    ),
    wire.ListTopics: Control(
        _same(operations.ListTopics),
        lambda page: wire.Topics(rows=page.rows, after=page.next),
    ),
    wire.CreateNamespace: Control(
        lambda asked: operations.CreateNamespace(asked.namespace, exist_ok=False), _done
    ),
    wire.DeleteNamespace: Control(_same(operations.DeleteNamespace), _done),
    wire.ListNamespaces: Control(
        lambda _: operations.ListNamespaces(limit=sys.maxsize),
        lambda page: wire.Namespaces(rows=page.rows),
    ),
    wire.DescribeBroker: Control(
        _same(operations.DescribeBroker), lambda report: wire.BrokerDescription(report=report)
    ),
    wire.ListSubscriptions: Control(
        _same(operations.ListSubscriptions),
        lambda page: wire.Subscriptions(rows=page.rows, after=page.next),
    ),
    wire.UpdateSubscription: Control(_update_subscription, _done),
    wire.DeleteSubscription: Control(_same(operations.DeleteSubscription), _done),
    wire.Seek: Control(_same(operations.SeekSubscription), _done),
    wire.PauseSubscription: Control(_pause, _done),
    wire.SaveCursor: Control(_same(operations.SaveCursor, name="cursor"), _done),
    wire.DropCursor: Control(_same(operations.DropCursor, name="cursor"), _done),
    wire.RedriveSubscription: Control(
        lambda asked: operations.RedriveSubscription(
            asked.topic, asked.subscription, asked.count or None
        ),
        lambda answer: wire.SubscriptionRedriven(messages=answer.messages),
    ),
    wire.RegisterSchema: Control(_without_mode(operations.RegisterSchema), _registered),
    wire.CheckSchema: Control(
        _without_mode(operations.CheckSchema),
        lambda answer: wire.SchemaChecked(reasons=answer.reasons),
    ),
    wire.GetSchema: Control(_get_schema, _found),
    wire.ListSchemaVersions: Control(
        lambda asked: operations.ListVersions(asked.subject, PAGE_MAX, asked.after),
        lambda page: wire.SchemaVersions(rows=page.rows, after=page.next),
    ),
    wire.ListSchemas: Control(
        _same(operations.ListSubjects),
        lambda page: wire.Schemas(rows=page.rows, after=page.next),
    ),
    wire.DescribeSchema: Control(
        _same(operations.DescribeSubject), lambda report: wire.SchemaDescription(report=report)
    ),
    wire.DeleteSchema: Control(_delete_schema, _done),
    wire.SetSchemaMode: Control(_same(operations.ChangeSubject), _done),
    wire.BindSchema: Control(_same(operations.BindTopic), _bound),
    wire.UnbindSchema: Control(_same(operations.UnbindTopic), _done),
    wire.GetSchemaBinding: Control(_same(operations.DescribeBinding), _bound),
}

# The right that a command of another kind needs, and its field with a topic or topics. Commands
# that are neither here nor above are about a channel, which its caller was allowed to open.
RIGHTS: dict[type[wire.Command], tuple[Right, str]] = {
    wire.OpenProducer: (Right.PRODUCE, "topic"),
    wire.CommitTransaction: (Right.PRODUCE, "topics"),
    wire.CloseStage: (Right.PRODUCE, "topics"),
    wire.Subscribe: (Right.CONSUME, "topic"),
    wire.OpenReader: (Right.CONSUME, "topic"),
    wire.LocateStream: (Right.CONSUME, "topic"),
    wire.WatchStreams: (Right.LOOKUP, "topics"),
    wire.ChangeTimeline: (Right.PRODUCE, "topic"),
    wire.ChangeCron: (Right.PRODUCE, "topic"),
    wire.ConsumeTimeline: (Right.CONSUME, "topic"),
    wire.GetFromTimeline: (Right.CONSUME, "topic"),
    wire.ListTimeline: (Right.CONSUME, "topic"),
    wire.CountTimeline: (Right.LOOKUP, "topic"),
    wire.RedriveTimeline: (Right.CONSUME, "topic"),
    wire.ListCron: (Right.CONSUME, "topic"),
    wire.PreviewCron: (Right.LOOKUP, "topic"),
}


def admit(session: "NativeSession", command: wire.Command) -> None:
    """Raise `DeniedError` unless the caller has the right that a command needs."""
    needed = RIGHTS.get(type(command))
    if needed is not None:
        right, field = needed
        topics = getattr(command, field)
        name = str(command.__struct_config__.tag)
        resources = (topics,) if isinstance(topics, str) else topics
        session.door.dispatcher.admit(_caller(session), right, name, *resources)


def _caller(session: "NativeSession") -> Caller:
    return Caller("native", session.shown.name, session.address)
