"""`ister topics`: list, create, describe and delete topics."""

from typing import Annotated

import typer

from ister.base import SubscriptionReport, TopicReport
from ister.base.errors import TopicNotFoundError
from ister.cli.terminal import (
    URL,
    JsonOption,
    UrlOption,
    YesOption,
    confirm,
    run,
    say,
    write_json,
    write_table,
)
from ister.client import Client, connect

topics = typer.Typer(no_args_is_help=True, help="See and change topics.")

_COLUMNS = ("TOPIC", "KIND", "PRODUCERS", "SUBSCRIPTIONS", "IN", "OUT", "DROPPED", "BYTES IN")


@topics.command("list")
def list_topics(
    pattern: Annotated[str, typer.Argument(help="As '/default/orders.*'; all by default.")] = "",
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """List topics with what happened on them since the broker started.

    \b
    Examples:
      ister topics list
      ister topics list '/default/orders.>' --json
    """

    async def fetch() -> list[TopicReport]:
        async with connect(url) as client:
            return await client.topics(pattern)

    rows = run(fetch())
    if as_json:
        write_json(rows)
    else:
        _write_topics(rows)


@topics.command("create")
def create_topic(
    topic: Annotated[str, typer.Argument(help="As /default/orders.")],
    url: UrlOption = URL,
    partitions: Annotated[int, typer.Option(min=0, help="0 for a topic without.")] = 0,
    kind: Annotated[str, typer.Option(help="live.")] = "live",
) -> None:
    """Create a topic; nothing happens when it exists with the same settings.

    \b
    Example:
      ister topics create /default/orders --partitions 4
    """

    async def create() -> None:
        async with connect(url) as client:
            await client.create_topic(topic, kind=kind, partitions=partitions)

    run(create())
    say(f"topic {topic} is there")


@topics.command("describe")
def describe_topic(
    topic: Annotated[str, typer.Argument(help="As /default/orders.")],
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """Show a topic, its partitions and its subscriptions."""

    async def fetch() -> tuple[list[TopicReport], list[SubscriptionReport]]:
        async with connect(url) as client:
            return await _describe(client, topic)

    rows, subscriptions = run(fetch())
    if as_json:
        write_json({"topic": topic, "topics": rows, "subscriptions": subscriptions})
        return
    _write_topics(rows)
    for one in subscriptions:
        say(
            f"subscription {one.subscription} on {one.topic}: {one.type}, "
            f"{len(one.consumers)} consumers"
        )


@topics.command("delete")
def delete_topic(
    topic: Annotated[str, typer.Argument(help="As /default/orders.")],
    url: UrlOption = URL,
    yes: YesOption = False,
) -> None:
    """Delete a topic with its partitions; its producers and consumers are closed."""

    async def fetch() -> tuple[list[TopicReport], list[SubscriptionReport]]:
        async with connect(url) as client:
            return await _describe(client, topic)

    async def delete() -> None:
        async with connect(url) as client:
            await client.delete_topic(topic)

    rows, subscriptions = run(fetch())
    consumers = sum(len(one.consumers) for one in subscriptions)
    parts = "" if rows[0].topic == topic else f" with its {len(rows)} partitions"
    confirm(
        f"deletes topic {topic}{parts}: {sum(r.producers for r in rows)} producers and "
        f"{consumers} consumers use it",
        yes=yes,
    )
    run(delete())
    say(f"topic {topic} is deleted")


async def _describe(
    client: Client, topic: str
) -> tuple[list[TopicReport], list[SubscriptionReport]]:
    rows = await client.topics(topic)
    if not rows:
        raise TopicNotFoundError(topic)
    found: dict[tuple[str, str], SubscriptionReport] = {}
    for name in {topic, *(row.topic for row in rows)}:
        for one in await client.subscriptions(name):
            found[one.topic, one.subscription] = one
    return rows, [found[key] for key in sorted(found)]


def _write_topics(rows: list[TopicReport]) -> None:
    write_table(
        _COLUMNS,
        [
            (
                row.topic,
                row.kind,
                row.producers,
                row.subscriptions,
                row.messages_in,
                row.messages_out,
                row.messages_dropped,
                row.bytes_in,
            )
            for row in rows
        ],
    )
