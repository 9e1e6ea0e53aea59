"""Commands for batches that are staged now and published once, later, by somebody else.

What is staged outlives the connection that did it. Spec: docs/protocol.md.
"""

from typing import TypeAlias

from ister.wire.tagged import Listed, Tagged


class OpenStage(Tagged):
    """Use `channel` for staging: STAGE frames add batches, for the topics named at the end.

    `stage` is a word of the client's choice that nobody else uses. What is not published within
    `keep_ms` after it was closed is forgotten.
    """

    channel: int
    stage: str
    keep_ms: int = 600_000


class CloseStage(Tagged):
    """Nothing more is staged on `channel`, which is free afterwards, whatever the answer.

    The sequence of a STAGE frame is the slot of its topic in `topics`.
    """

    channel: int
    topics: Listed[str]


class StageClosed(Tagged):
    """So much waits to be published."""

    messages: int
    size_bytes: int


class PublishStages(Tagged):
    """Publish everything of some stages, all or nothing, as number `number` of `series`.

    Nothing is done when that number of the series, or a higher one, was published before.
    """

    stages: Listed[str]
    series: str
    number: int


class StagesPublished(Tagged):
    """It is published: just now, or before."""

    repeated: bool
    messages: int = 0
    # A number above the one that was asked for is, so that this one may not have been.
    overtaken: bool = False


class DropStages(Tagged):
    """Forget what some stages have; those that do not exist do not matter."""

    stages: Listed[str]


StagingCommand: TypeAlias = (
    OpenStage | CloseStage | StageClosed | PublishStages | StagesPublished | DropStages
)
