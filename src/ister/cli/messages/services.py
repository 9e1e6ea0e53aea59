"""`ister services`: the instances that answer requests."""

from typing import Annotated

import typer

from ister.base import rounded_span
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.terminal import JsonOption, run, write_json, write_table
from ister.client import ServiceReport

services = typer.Typer(no_args_is_help=True, help="See the services that answer requests.")


@services.command("list")
def list_services(
    pattern: Annotated[
        str, typer.Argument(help="Their topics, as /default/price or /default/>.")
    ] = "/default/>",
    url: UrlOption = URL,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait for answers.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """List the instances of services that run: each is asked how it does.

    Only programs that use `client.service` are found. Latencies are those of the handler.

    \b
    Examples:
      ister services list
      ister services list "/default/price.>" --json
    """

    async def fetch() -> list[ServiceReport]:
        async with connect(url) as client:
            return await client.services(pattern, timeout=timeout)

    rows = run(fetch())
    if as_json:
        write_json(rows)
    else:
        _write_services(rows)


def _write_services(rows: list[ServiceReport]) -> None:
    write_table(
        ("TOPIC", "ID", "HEALTHY", "REQUESTS", "FAILURES", "IN FLIGHT", "OF", "MEAN", "MAX"),
        [
            (
                row.topic,
                row.id,
                "yes" if row.healthy else "no",
                row.stats.requests,
                row.stats.failures,
                row.stats.in_flight,
                row.concurrency,
                rounded_span(round(row.stats.latency_mean * 1000)),
                rounded_span(round(row.stats.latency_max * 1000)),
            )
            for row in rows
        ],
    )
