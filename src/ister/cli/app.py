"""The `ister` command: its subcommands and what they share."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from ister.cli.bench import bench
from ister.cli.consume import consume
from ister.cli.keys import keys
from ister.cli.namespaces import namespaces
from ister.cli.produce import produce
from ister.cli.read import read
from ister.cli.requests import reply, request
from ister.cli.serve import serve
from ister.cli.storage import storage
from ister.cli.subscriptions import subs
from ister.cli.terminal import configure_cli_log, guard
from ister.cli.top import top
from ister.cli.topics import topics

app = typer.Typer(
    name="ister",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    guard(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ister {version('ister')}\n")
        raise typer.Exit


@app.callback()
def shared(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell of every connection, on stderr.")
    ] = False,
) -> None:
    """Ister: messaging and streaming for Python teams.

    \b
    Try it, each line in its own terminal:
      ister serve
      ister consume /default/hello
      ister produce /default/hello "hello world"
    """
    configure_cli_log(verbose=verbose)


for command in (serve, produce, consume, read, request, reply, bench, top):
    app.command()(command)
for group, name in (
    (topics, "topics"),
    (subs, "subs"),
    (namespaces, "namespaces"),
    (storage, "storage"),
    (keys, "keys"),
):
    app.add_typer(group, name=name)
