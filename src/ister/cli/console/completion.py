"""Names of topics for the completion of a shell, from the broker of the command."""

import asyncio
from typing import Any

import typer

from ister.base import find_partition
from ister.base.errors import IsterError
from ister.cli.console.access import URL, connect
from ister.cli.console.terminal import configure_cli_log

# Somebody waits at a prompt.
ANSWER_S = 1.0
# More than a terminal shows.
NAMES_MAX = 1_000


def topic_argument(help: str) -> Any:
    """Return the argument for a topic, which a shell completes."""
    return typer.Argument(help=help, autocompletion=complete_topics)


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin with what was typed; none when no broker answers."""
    # Else the SDK would log to where the shell reads names.
    configure_cli_log(verbose=False)
    try:
        found = asyncio.run(_fetch(context.params.get("url") or URL))
    except (IsterError, OSError):
        return []
    return sorted(name for name in found if name.startswith(incomplete))[:NAMES_MAX]


async def _fetch(url: str) -> set[str]:
    async with asyncio.timeout(ANSWER_S), connect(url) as client:
        rows = await client.topics()
    partitions = [find_partition(row.topic) for row in rows]
    return {
        row.topic if found is None else found[0]
        for row, found in zip(rows, partitions, strict=True)
    }
