"""Commands that a client sends again by itself when the connection was lost on the way."""

from ister.wire import (
    AskTime,
    BindSchema,
    CheckSchema,
    Command,
    CountTimeline,
    CreateTopic,
    DescribeBroker,
    DescribeSchema,
    DropStages,
    GetFromTimeline,
    GetSchema,
    GetSchemaBinding,
    ListCron,
    ListNamespaces,
    ListSchemas,
    ListSchemaVersions,
    ListSubscriptions,
    ListTimeline,
    ListTopics,
    LocateStream,
    PauseSubscription,
    PreviewCron,
    PublishStages,
    RegisterSchema,
    SaveCursor,
    Seek,
    SetSchemaMode,
    UpdateTopic,
    WatchStreams,
)

# Questions, and wishes that are already fulfilled the second time.
_REPEATABLE = (
    AskTime,
    BindSchema,
    CheckSchema,
    CountTimeline,
    CreateTopic,
    DescribeBroker,
    DescribeSchema,
    DropStages,
    GetFromTimeline,
    GetSchema,
    GetSchemaBinding,
    ListCron,
    ListNamespaces,
    ListSchemas,
    ListSchemaVersions,
    ListSubscriptions,
    ListTimeline,
    ListTopics,
    LocateStream,
    PauseSubscription,
    PreviewCron,
    PublishStages,
    RegisterSchema,
    SaveCursor,
    Seek,
    SetSchemaMode,
    UpdateTopic,
    WatchStreams,
)


def is_repeatable(command: Command) -> bool:
    """Whether a command does no harm when it is done twice.

    A topic that has to be new would be found there the second time.
    """
    is_new = isinstance(command, CreateTopic) and command.exist_ok is False
    return isinstance(command, _REPEATABLE) and not is_new
