"""What commands about timelines have in common: options, and a call of the SDK."""

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from ister.base import printable
from ister.base.errors import TopicNotFoundError, WrongKindError
from ister.cli.console.access import connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.terminal import EXIT_INTERRUPTED, run, say, write_json
from ister.client import Client, MessageVersion, Timeline

TopicArgument = Annotated[str, topic_argument("A timeline, as /default/reminders.")]
IdArgument = Annotated[str, typer.Argument(help="Id of the message.")]
PayloadArgument = Annotated[
    str, typer.Argument(help="What it says. '-', or none, reads all of stdin.")
]
GroupOption = Annotated[str, typer.Option(help="Who owns it: only that group changes it.")]
VersionOption = Annotated[
    int | None, typer.Option(min=1, help="Only if the message is still at this version.")
]
AttributeOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Attribute. Repeatable.")
]

_T = TypeVar("_T")


def with_timeline(
    url: str,
    topic: str,
    group: str,
    work: Callable[[Timeline], Awaitable[_T]],
    *,
    kind: str = "timeline",
    interrupt_code: int = EXIT_INTERRUPTED,
) -> _T:
    """Do something with a timeline; when it is not there, say how one of `kind` is made."""

    async def call() -> _T:
        async with connect(url) as client:
            try:
                return await work(client.timeline(topic, group=group))
            except TopicNotFoundError:
                await _tell_missing(client, topic, kind)
                raise

    return run(call(), interrupt_code=interrupt_code)


async def _tell_missing(client: Client, topic: str, kind: str) -> None:
    """Say how a timeline is made; raise `WrongKindError` when the topic is something else."""
    for row in await client.topics(topic):
        if row.timeline is None:
            raise WrongKindError(topic, row.kind, "its messages are not due at a time")
    say(f"a timeline is made before it is used: ister topics create {topic} --kind {kind}")


def payload_of(text: str) -> bytes:
    """Return what was typed for a payload: '-' is what stdin has."""
    return sys.stdin.buffer.read() if text == "-" else text.encode()


def tell_changed(topic: str, changed: MessageVersion, verb: str, *, as_json: bool) -> None:
    """Tell what has become of a message."""
    if as_json:
        write_version(topic, changed)
    else:
        name = printable(changed.id)
        say(f"message {name} of {topic} is {verb}, and at version {changed.version}")


def write_version(topic: str, changed: MessageVersion) -> None:
    """Print a message after a change, for programs."""
    write_json({"topic": topic, "id": changed.id, "version": changed.version})
