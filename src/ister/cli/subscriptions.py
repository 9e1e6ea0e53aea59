"""`ister subs`: list and describe subscriptions."""

from typing import Annotated

import typer

from ister.base import SubscriptionReport
from ister.base.errors import SubscriptionNotFoundError
from ister.cli.terminal import URL, JsonOption, UrlOption, run, write_json, write_table
from ister.client import connect

subs = typer.Typer(no_args_is_help=True, help="See subscriptions and their consumers.")


@subs.command("list")
def list_subscriptions(
    topic: Annotated[str, typer.Argument(help="Only those of this topic.")] = "",
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """List subscriptions.

    \b
    Examples:
      ister subs list
      ister subs list /default/orders --json
    """
    rows = _fetch(url, topic)
    if as_json:
        write_json(rows)
        return
    write_table(
        ("TOPIC", "SUBSCRIPTION", "TYPE", "TOPICS", "CONSUMERS", "OUT", "DROPPED"),
        [
            (
                row.topic,
                row.subscription,
                row.type,
                row.topics,
                len(row.consumers),
                row.messages_out,
                row.messages_dropped,
            )
            for row in rows
        ],
    )


@subs.command("describe")
def describe_subscription(
    topic: Annotated[str, typer.Argument(help="Topic or pattern of the subscription.")],
    subscription: Annotated[str, typer.Argument(help="Its name.")],
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """Show one subscription with its consumers."""
    rows = [row for row in _fetch(url, "") if row.subscription == subscription]
    found = next((row for row in rows if row.topic == topic), None)
    if found is None:
        raise SubscriptionNotFoundError(topic, subscription)
    if as_json:
        write_json(found)
        return
    policy = f" ({found.policy})" if found.type == "shared" else ""
    write_table(
        ("SUBSCRIPTION", "TOPIC", "TYPE", "FILTERS", "OUT", "DROPPED"),
        [
            (
                found.subscription,
                found.topic,
                found.type + policy,
                _filters(found),
                found.messages_out,
                found.messages_dropped,
            )
        ],
    )
    write_table(
        ("CONSUMER", "ADDRESS", "ACTIVE", "CREDIT", "QUEUED", "QUEUED BYTES", "OUT", "DROPPED"),
        [
            (
                one.name,
                one.address,
                one.active,
                one.credit,
                one.queued,
                one.queued_bytes,
                one.delivered,
                one.dropped,
            )
            for one in found.consumers
        ],
    )


def _fetch(url: str, topic: str) -> list[SubscriptionReport]:
    async def fetch() -> list[SubscriptionReport]:
        async with connect(url) as client:
            return await client.subscriptions(topic)

    return run(fetch())


def _filters(row: SubscriptionReport) -> str:
    words = [f"{name}={glob}" for name, glob in row.filters.items()]
    words += [f"key={glob}" for glob in row.key_filters]
    return ", ".join(words) or "-"
