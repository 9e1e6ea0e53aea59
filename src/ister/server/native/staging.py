"""What the commands and frames of staging do, and what they are answered.

Always true: a connection that stages more than the broker's files take is not read from until
they have caught up; what it has not closed when it is lost is forgotten.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ister.base.errors import BadRequestError, IsterError
from ister.broker import Published, Stage
from ister.codec import Batch
from ister.server.native.channels import check_channel
from ister.wire import (
    CloseStage,
    Command,
    Done,
    DropStages,
    OpenStage,
    PublishStages,
    StageClosed,
    StagesPublished,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

Reply = Callable[[Command | IsterError], object]


def add_to_stage(session: "NativeSession", stage: Stage, slot: int, body: memoryview) -> None:
    """Add a batch to a stage; what is wrong with it is told when that is closed."""
    staging = session.broker.staging
    try:
        staging.add(stage, slot, Batch(body))
    except IsterError as error:
        staging.fail(stage, error)
    if staging.full:
        session.hold_up()
        staging.on_relief(session.go_on)


def open_stage(session: "NativeSession", command: OpenStage, reply: Reply) -> None:
    """Begin a stage on a channel."""
    check_channel(session, command.channel)
    stage = session.broker.staging.open(command.stage, command.keep_ms)
    session.stages[command.channel] = stage
    reply(Done())


def close_stage(session: "NativeSession", command: CloseStage, reply: Reply) -> None:
    """Answer when all of a stage waits to be published."""
    stage = session.stages.pop(command.channel, None)
    if stage is None:
        raise BadRequestError(f"no stage is open on channel {command.channel}")

    def on_done(error: IsterError | None) -> None:
        reply(error or StageClosed(messages=stage.messages, size_bytes=stage.size_bytes))

    session.broker.staging.close(stage, command.topics, on_done)


def publish_stages(session: "NativeSession", command: PublishStages, reply: Reply) -> None:
    """Answer when the journal has all of some stages."""

    def on_done(result: Published | IsterError) -> None:
        if isinstance(result, IsterError):
            reply(result)
        else:
            repeated, messages, overtaken = result
            reply(StagesPublished(repeated=repeated, messages=messages, overtaken=overtaken))

    session.broker.series.publish(command.stages, command.series, command.number, on_done)


def drop_stages(session: "NativeSession", command: DropStages, reply: Reply) -> None:
    """Forget stages, wherever they were opened; their channels here are free."""
    dropped = set(command.stages)
    for channel, stage in list(session.stages.items()):
        if stage.id in dropped:
            del session.stages[channel]
    session.broker.staging.drop(command.stages)
    reply(Done())


# Each action takes its own command type, which the table's key guarantees.
STAGING_ACTIONS: dict[type, Callable[["NativeSession", Any, Reply], None]] = {
    OpenStage: open_stage,
    CloseStage: close_stage,
    PublishStages: publish_stages,
    DropStages: drop_stages,
}
