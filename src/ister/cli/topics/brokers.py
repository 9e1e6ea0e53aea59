"""`ister brokers`: the brokers of an installation."""

import typer

from ister.base import BrokerReport, rounded_size, rounded_span
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.terminal import JsonOption, run, write_json, write_table

brokers = typer.Typer(no_args_is_help=True, help="See the brokers.")


@brokers.command("list")
def list_brokers(url: UrlOption = URL, as_json: JsonOption = False) -> None:
    """List the brokers, with what happened on them since they started.

    \b
    Example:
      ister brokers list --json
    """

    async def fetch() -> list[BrokerReport]:
        async with connect(url) as client:
            return [await client.broker()]

    rows = run(fetch())
    if as_json:
        write_json(rows)
    else:
        _write_brokers(rows)


def _write_brokers(rows: list[BrokerReport]) -> None:
    write_table(
        ("BROKER", "VERSION", "UP", "CONNECTIONS", "TOPICS", "SUBSCRIPTIONS", "IN", "OUT",
         "STORED", "DELAYED", "DURABLE WRITES"),
        [
            (
                row.broker,
                row.version,
                rounded_span(int(row.uptime_s * 1000)),
                row.connections,
                row.topics,
                row.subscriptions,
                row.messages_in,
                row.messages_out,
                rounded_size(row.stored_bytes),
                row.delayed.waiting,
                row.storage_error or "taken",
            )
            for row in rows
        ],
    )  # fmt: skip
