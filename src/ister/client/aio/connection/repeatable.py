"""Commands that a client sends again by itself when the connection was lost on the way."""

from ister import wire

# Questions, and wishes that are already fulfilled the second time.
_REPEATABLE = (
    wire.AskTime,
    wire.BindSchema,
    wire.CheckSchema,
    wire.CountTimeline,
    wire.CreateTopic,
    wire.DescribeBroker,
    wire.DescribeSchema,
    wire.DropStages,
    wire.GetFromTimeline,
    wire.GetSchema,
    wire.GetSchemaBinding,
    wire.ListCron,
    wire.ListNamespaces,
    wire.ListSchemas,
    wire.ListSchemaVersions,
    wire.ListSubscriptions,
    wire.ListTimeline,
    wire.ListTopics,
    wire.LocateStream,
    wire.PauseSubscription,
    wire.PreviewCron,
    wire.PublishStages,
    wire.RegisterSchema,
    wire.SaveCursor,
    wire.Seek,
    wire.SetSchemaMode,
    wire.UpdateTopic,
    wire.WatchStreams,
)


def is_repeatable(command: wire.Command) -> bool:
    """Whether a command does no harm when it is done twice.

    A topic that has to be new would be found there the second time.
    """
    is_new = isinstance(command, wire.CreateTopic) and command.exist_ok is False
    return isinstance(command, _REPEATABLE) and not is_new
