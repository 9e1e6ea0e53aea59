"""`ister serve`: read the configuration, run the broker, show where it is."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ister.base import DEFAULT_URL
from ister.telemetry import configure_log

if TYPE_CHECKING:
    from ister.server import Addresses, ServerConfig

# Flags are taken as text: the configuration checks them all and reports every mistake at once.
_Text = str | None

DataOption = Annotated[
    _Text,
    typer.Option(
        metavar="DIR", help="Folder that streams are kept in.", show_default="./ister-data"
    ),
]
StreamMemoryOption = Annotated[
    _Text,
    typer.Option(
        metavar="SIZE", help="Newest messages of all streams in memory.", show_default="256MiB"
    ),
]
SegmentSizeOption = Annotated[
    _Text, typer.Option(metavar="SIZE", help="Size of a journal file.", show_default="128MiB")
]
ObjectStoreOption = Annotated[
    _Text,
    typer.Option(metavar="URL", help="Store for streams of durability 'object': s3://…, gs://…"),
]
TierOption = Annotated[
    _Text, typer.Option(metavar="URL", help="Store that sealed segments of --data are moved to.")
]
TierAfterOption = Annotated[
    _Text,
    typer.Option(metavar="TIME", help="Age at which they are moved there.", show_default="1h"),
]
KeyFileOption = Annotated[
    _Text, typer.Option(metavar="FILE", help="Keys for encryption at rest; see `ister keys`.")
]
AcceptUnencryptedOption = Annotated[
    bool | None,
    typer.Option(
        "--accept-unencrypted",
        help="With --key-file: start although what is stored was written without keys.",
    ),
]
TimelinesOption = Annotated[
    _Text,
    typer.Option(
        metavar="URL",
        help="PostgreSQL for timelines: postgresql://user@host/db",
        show_default="in --data",
    ),
]
HostOption = Annotated[
    _Text,
    typer.Option(metavar="HOST", help="Address to listen on.", show_default="127.0.0.1"),
]
PortOption = Annotated[
    _Text,
    typer.Option(metavar="PORT", help="Native protocol; 0 picks one.", show_default="6655"),
]
HttpPortOption = Annotated[
    _Text,
    typer.Option(metavar="PORT", help="Metrics and health; 0 picks one.", show_default="8655"),
]
HttpHostOption = Annotated[
    _Text, typer.Option(metavar="HOST", help="Address of the HTTP door.", show_default="--host")
]
HttpAllowedHostsOption = Annotated[
    _Text,
    typer.Option(
        metavar="NAMES",
        help="More host names to accept in HTTP requests, separated by commas; * accepts any.",
        show_default="localhost, --http-host and the machine's name",
    ),
]
GrpcOption = Annotated[
    bool | None,
    typer.Option(
        "--grpc/--no-grpc",
        help="The doors for Danube's clients and admin tool.",
        show_default="if ister[grpc] is installed",
    ),
]
GrpcPortOption = Annotated[
    _Text,
    typer.Option(metavar="PORT", help="For Danube's clients; 0 picks one.", show_default="6650"),
]
AdminPortOption = Annotated[
    _Text,
    typer.Option(
        metavar="PORT", help="For Danube's admin tool; 0 picks one.", show_default="50051"
    ),
]
GrpcHostOption = Annotated[
    _Text, typer.Option(metavar="HOST", help="Address of the gRPC doors.", show_default="--host")
]
AdvertiseOption = Annotated[
    _Text,
    typer.Option(
        metavar="HOST", help="What Danube's clients are told to connect to.", show_default="--host"
    ),
]
TlsCertOption = Annotated[
    _Text,
    typer.Option(metavar="FILE", help="Certificate of the broker, PEM: all doors speak TLS."),
]
TlsKeyOption = Annotated[
    _Text, typer.Option(metavar="FILE", help="Key of --tls-cert, PEM, without a password.")
]
TlsClientCaOption = Annotated[
    _Text,
    typer.Option(metavar="FILE", help="Clients need a certificate of one of these authorities."),
]
TokensOption = Annotated[
    _Text, typer.Option(metavar="FILE", help="Lines of NAME TOKEN: all doors ask for a token.")
]
AutoCreateOption = Annotated[
    _Text,
    typer.Option(
        metavar="WORD",
        help="What is made of a missing topic by its use: live, stream or off; of one namespace "
        "as 'live,shop=off'.",
        show_default="live",
    ),
]
ReadyFileOption = Annotated[
    _Text, typer.Option(metavar="FILE", help="Write pid and addresses here, as JSON, once ready.")
]
NameOption = Annotated[
    _Text, typer.Option(metavar="NAME", help="Name of this broker.", show_default="host name")
]
ConfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", envvar="ISTER_CONFIG", help="Settings as TOML.")
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A limit, as message_bytes_max=2MiB. Repeatable."),
]
HeartbeatOption = Annotated[
    _Text,
    typer.Option(metavar="TIME", help="Silence before a peer is probed.", show_default="10s"),
]
BusyPollOption = Annotated[
    _Text,
    typer.Option(
        metavar="MICROSECONDS",
        help="Poll before sleeping while small messages come thick; 0 never.",
        show_default="300",
    ),
]
DeadlineOption = Annotated[
    _Text,
    typer.Option(metavar="TIME", help="Time for queues to drain at the end.", show_default="10s"),
]
LogLevelOption = Annotated[
    _Text, typer.Option(metavar="LEVEL", help="debug, info, warning, error.", show_default="info")
]
LogFormatOption = Annotated[
    _Text, typer.Option(metavar="FORMAT", help="auto, console, json.", show_default="auto")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No banner.")]


# The setting that each option sets.
_SETTINGS = {
    "data": "data",
    "name": "name",
    "ready_file": "ready_file",
    "auto_create": "auto_create",
    "stream_memory": "storage.memory",
    "segment_size": "storage.segment",
    "object_store": "storage.object_store",
    "tier": "storage.tier",
    "tier_after": "storage.tier_after",
    "key_file": "storage.key_file",
    "accept_unencrypted": "storage.accept_unencrypted",
    "timelines": "storage.timelines",
    "host": "native.host",
    "port": "native.port",
    "heartbeat": "native.heartbeat",
    "busy_poll": "native.busy_poll_us",
    "http_host": "http.host",
    "http_port": "http.port",
    "http_allowed_hosts": "http.allowed_hosts",
    "grpc_host": "grpc.host",
    "grpc_port": "grpc.port",
    "admin_port": "grpc.admin_port",
    "advertise": "grpc.advertise",
    "tls_cert": "security.tls_cert",
    "tls_key": "security.tls_key",
    "tls_client_ca": "security.tls_client_ca",
    "tokens": "security.tokens",
    "log_level": "log.level",
    "log_format": "log.format",
    "shutdown_deadline": "shutdown.deadline",
}
_MODES = {True: "on", False: "off", None: None}


def serve(
    data: DataOption = None,
    stream_memory: StreamMemoryOption = None,
    segment_size: SegmentSizeOption = None,
    object_store: ObjectStoreOption = None,
    tier: TierOption = None,
    tier_after: TierAfterOption = None,
    key_file: KeyFileOption = None,
    accept_unencrypted: AcceptUnencryptedOption = None,
    timelines: TimelinesOption = None,
    host: HostOption = None,
    port: PortOption = None,
    http_port: HttpPortOption = None,
    http_host: HttpHostOption = None,
    http_allowed_hosts: HttpAllowedHostsOption = None,
    grpc: GrpcOption = None,
    grpc_host: GrpcHostOption = None,
    grpc_port: GrpcPortOption = None,
    admin_port: AdminPortOption = None,
    advertise: AdvertiseOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    tokens: TokensOption = None,
    auto_create: AutoCreateOption = None,
    ready_file: ReadyFileOption = None,
    name: NameOption = None,
    config: ConfigOption = None,
    limit: LimitOption = None,
    heartbeat: HeartbeatOption = None,
    busy_poll: BusyPollOption = None,
    shutdown_deadline: DeadlineOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    quiet: QuietOption = False,
) -> None:
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
    given = locals()
    from ister.server import read_config, run_broker

    flags: dict[str, object] = {path: given[name] for name, path in _SETTINGS.items()}
    flags["grpc.mode"] = _MODES[grpc]
    settings = read_config(
        flags=flags, limit_flags=limit or (), environment=os.environ, file=config
    )
    configure_log(level=settings.log.level, format=settings.log.format)
    wants_banner = sys.stderr.isatty() and not quiet
    run_broker(settings, on_ready=(lambda a: _show_banner(settings, a)) if wants_banner else None)


def places(settings: "ServerConfig") -> list[tuple[str, str]]:
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


def _show_banner(settings: "ServerConfig", addresses: "Addresses") -> None:
    from importlib.metadata import version

    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    from ister.cli.terminal import stderr_console

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
