"""The `ister` command: its subcommands and what they share."""

import gc
import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Annotated

import typer

from ister.cli.console.access import AccessGroup
from ister.cli.console.terminal import configure_cli_log, guard, write

# Where each command is: only the one that is asked for is loaded.
COMMANDS = {
    "serve": "ister.cli.serve",
    "produce": "ister.cli.messages.produce",
    "consume": "ister.cli.messages.consume",
    "read": "ister.cli.messages.read",
    "request": "ister.cli.messages.requests",
    "reply": "ister.cli.messages.requests",
    "bench": "ister.cli.messages.bench",
    "top": "ister.cli.topics.top",
    "topics": "ister.cli.topics.topics",
    "subs": "ister.cli.topics.subscriptions",
    "namespaces": "ister.cli.topics.namespaces",
    "brokers": "ister.cli.topics.brokers",
    "schemas": "ister.cli.topics.schemas",
    "timeline": "ister.cli.timelines.timeline",
    "services": "ister.cli.messages.services",
    "storage": "ister.cli.storage.storage",
    "keys": "ister.cli.storage.keys",
    "pipeline": "ister.cli.pipeline",
}


def run() -> None:
    """Run the command line and end the process with its exit code."""
    # Options, and their values, may stand before the command.
    command = next((word for word in sys.argv[1:] if word in COMMANDS), None)
    app = make_app([command] if command is not None else COMMANDS)
    if command != "serve":  # That has yet to load the broker.
        gc.enable()
    # By this name a shell asks for completions, however the program was started.
    guard(partial(app, prog_name="ister"))


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with these commands."""
    app = typer.Typer(
        name="ister",
        cls=AccessGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(shared)
    for name in names:
        found = getattr(import_module(COMMANDS[name]), name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command()(found)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write(f"ister {version('ister')}\n".encode())
        raise typer.Exit


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
    Try it, each line in its own terminal, in this order:
      ister serve
      ister topics create /default/hello
      ister consume /default/hello
      ister produce /default/hello "hello world"
    """
    configure_cli_log(verbose=verbose)
