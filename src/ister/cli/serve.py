"""`ister serve`: read the configuration, run the broker, show where it is."""

import os
import sys
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ister.base import DEFAULT_URL
from ister.config import ServerConfig, Setting, all_settings, read_config
from ister.telemetry import configure_log

if TYPE_CHECKING:
    from ister.server import Addresses

# Options of the command that are no settings.
_OTHERS = {
    "config": Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="ISTER_CONFIG", help="Settings as TOML.")
    ],
    "limit": Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A limit, as message_bytes_max=2MiB. Repeatable."),
    ],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="No banner.")],
}
_MODES = {True: "on", False: "off", None: None}


def serve(**given: Any) -> None:
    """Run a broker until Ctrl-C or SIGTERM; a second one ends it at once.

    Flags win over ISTER_* variables (ISTER_PORT, ISTER_HTTP_PORT, ISTER_LIMITS_TOPICS_MAX …),
    those over the TOML file (tables native, http, grpc, security, storage, log, shutdown, limits),
    that over defaults. Object stores take their keys from the usual variables (AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL …). Everybody on the machine sees flags:
    give a password for --timelines by PGPASSWORD, ~/.pgpass, or the whole URL by ISTER_TIMELINES.

    \b
    Examples:
      ister serve --data /var/lib/ister
      ister serve --key-file keys.json --tier s3://bucket/ister-segments
      ister serve --timelines postgresql://ister@db.local/ister
      ister serve --host 0.0.0.0 --tls-cert broker.pem --tls-key broker.key --tokens tokens.txt
      ister serve --port 0 --http-port 0 --ready-file /tmp/ister.json
      ister serve --config ister.toml --limit message_bytes_max=2MiB
    """
    from ister.server import run_broker

    flags: dict[str, object] = {one.path: given[_name_of(one)] for one in _SETTINGS}
    flags["grpc.mode"] = _MODES[given["grpc"]]
    settings = read_config(
        flags=flags,
        limit_flags=given["limit"] or (),
        environment=os.environ,
        file=given["config"],
    )
    configure_log(level=settings.log.level, format=settings.log.format)
    wants_banner = sys.stderr.isatty() and not given["quiet"]
    run_broker(settings, on_ready=(lambda a: _show_banner(settings, a)) if wants_banner else None)


_SETTINGS = [one for one in all_settings() if one.part != "limits"]


def _name_of(one: Setting) -> str:
    return one.flag.lstrip("-").replace("-", "_")


def _option(one: Setting) -> Any:
    """Return the type of the option that sets a setting.

    Values are taken as text: the configuration checks them all and reports every mistake at once.
    """
    if one.metavar:
        option = typer.Option(
            one.flag, metavar=one.metavar, help=one.why, show_default=one.shown or False
        )
        return Annotated[str | None, option]
    # A switch. That for gRPC can be turned off as well.
    spelled = f"{one.flag}/--no-grpc" if one.path == "grpc.mode" else one.flag
    return Annotated[bool | None, typer.Option(spelled, help=one.why, show_default=one.shown)]


_ANNOTATIONS = {_name_of(one): _option(one) for one in _SETTINGS} | _OTHERS
# What `typer` makes the options of.
serve.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=False if name == "quiet" else None,
            annotation=annotation,
        )
        for name, annotation in _ANNOTATIONS.items()
    ]
)


def places(settings: ServerConfig) -> list[tuple[str, str]]:
    """Return where streams and timelines are kept, each place with its name."""
    data = str(settings.data_folder)
    if settings.data is None and not settings.data_folder.is_dir():
        data += ", made with the first stream"
    if settings.storage.key_file is not None:
        data += f", encrypted with {settings.storage.key_file}"
    rows = [("data", data), ("tier", settings.storage.tier)]
    rows.append(("objects", settings.storage.object_store))
    # Not the URL: there may be a password in it.
    rows.append(("timelines", "PostgreSQL" if settings.storage.timelines else ""))
    return [(name, place) for name, place in rows if place]


def hints(url: str) -> list[str]:
    """Return commands to try with a broker, which work as they are when copied."""
    # Not `--url` in each: a line that is wrapped cannot be copied.
    reached = [] if url == DEFAULT_URL else [f"export ISTER_URL={url}"]
    return [
        *reached,
        "ister topics create /default/hello --kind stream",
        "ister produce /default/hello hi",
        "ister consume /default/hello --start earliest",
    ]


def _show_banner(settings: ServerConfig, addresses: "Addresses") -> None:
    from importlib.metadata import version

    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    from ister.cli.console.terminal import stderr_console

    rows = Table.grid(padding=(0, 2))
    rows.add_row("[dim]native[/]", f"[bold cyan]{escape(addresses.url)}[/]")
    scheme = "https" if addresses.tls else "http"
    rows.add_row("[dim]http[/]", f"{scheme}://{escape(addresses.http)}/metrics  /healthz  /readyz")
    if addresses.grpc:
        ports = f"{addresses.grpc}, admin {addresses.admin}"
        rows.add_row("[dim]grpc[/]", escape(ports))
    for name, place in places(settings):
        rows.add_row(f"[dim]{name}[/]", escape(place))
    for number, line in enumerate(hints(addresses.url)):
        rows.add_row("" if number else "[dim]try[/]", escape(line))
    title = f"[bold]Ister {version('ister')}[/] is ready (pid {addresses.pid}), Ctrl-C ends it"
    panel = Panel(rows, title=title, title_align="left", expand=False)
    stderr_console().print(panel, markup=True)
