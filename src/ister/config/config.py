"""The settings of `ister serve`: one frozen dataclass per part, each field a setting.

What is said here is said once: options, their help, variables, the file and the guide follow.
"""

import socket
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from ister.base import ADMIN_PORT, GRPC_PORT, HTTP_PORT, NATIVE_PORT, parse_plain, size_text
from ister.base.errors import BadNameError
from ister.base.limits import (
    BATCH_BYTES_CEILING,
    BUSY_POLL_US,
    HEARTBEAT_MS,
    KIB,
    MIB,
    Limits,
)
from ister.config.settings import (
    Setting,
    auto_create,
    choice,
    count,
    database_url,
    duration_ms,
    folder,
    host_name,
    setting,
    settings_of,
    size,
    store_url,
    switch,
    text,
)

PORT_MAX = 65_535

# In the folder a broker is started in, as other servers of this kind do.
DEFAULT_DATA = Path("ister-data")

# A limit beyond these is a typing error: 1 TiB in one queue, ten million of anything.
LIMIT_BYTES_MAX = 1024**4
LIMIT_COUNT_MAX = 10_000_000

# Ten years: whoever keeps segments on the disk for longer needs no tier.
TIER_AFTER_S_MAX = 3_650 * 86_400

LIMIT_VARIABLE = "ISTER_LIMITS_"


def _plain_name(raw: object) -> str:
    try:
        return parse_plain(text(raw), "a broker name")
    except BadNameError as error:
        raise ValueError(error.reason) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
    """The native door."""

    host: str = field(
        default="127.0.0.1",
        metadata=setting(
            "--host HOST",
            "Address to listen on. Open it to other machines only with TLS and tokens.",
            parse=host_name,
        ),
    )
    port: int = field(
        default=NATIVE_PORT,
        metadata=setting(
            "--port PORT",
            "Port of the native protocol; 0 picks a free one.",
            parse=count(0, PORT_MAX),
        ),
    )
    heartbeat_ms: int = field(
        default=HEARTBEAT_MS,
        metadata=setting(
            "--heartbeat TIME",
            "Silence after which the broker pings a peer.",
            key="heartbeat",
            parse=duration_ms(0.1, 3600),
        ),
    )
    busy_poll_us: int = field(
        default=BUSY_POLL_US,
        metadata=setting(
            "--busy-poll MICROSECONDS",
            "Microseconds to stay awake for the next message while small messages arrive in quick "
            "succession; 0 never.",
            parse=count(0, 10_000),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The HTTP door: metrics, health and the API."""

    host: str = field(
        default="",
        metadata=setting(
            "--http-host HOST", "Address of the HTTP port.", shown="--host", parse=host_name
        ),
    )
    port: int = field(
        default=HTTP_PORT,
        metadata=setting(
            "--http-port PORT",
            "Port for metrics, health and the HTTP API; 0 picks a free one.",
            parse=count(0, PORT_MAX),
        ),
    )
    allowed_hosts: str = field(
        default="",
        metadata=setting(
            "--http-allowed-hosts NAMES",
            "More host names to accept in HTTP requests, separated by commas; * accepts any.",
            shown="localhost, --http-host and the machine's name",
            parse=text,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """The gRPC doors, for Danube's clients and admin tool. They need the extra `grpc`."""

    mode: str = field(
        default="auto",
        metadata=setting(
            "--grpc",
            "Ports for Danube's clients and admin tool: on, off (--no-grpc), or auto: on if the "
            "extra grpc is installed.",
            parse=choice("auto", "on", "off"),
        ),
    )
    host: str = field(
        default="",
        metadata=setting(
            "--grpc-host HOST", "Address of the gRPC ports.", shown="--host", parse=host_name
        ),
    )
    port: int | None = field(
        default=None,
        metadata=setting(
            "--grpc-port PORT",
            "Port for Danube's clients; 0 picks a free one.",
            shown=str(GRPC_PORT),
            parse=count(0, PORT_MAX),
        ),
    )
    admin_port: int | None = field(
        default=None,
        metadata=setting(
            "--admin-port PORT",
            "Port for Danube's admin tool; 0 picks a free one.",
            shown=str(ADMIN_PORT),
            parse=count(0, PORT_MAX),
        ),
    )
    advertise: str = field(
        default="",
        metadata=setting(
            "--advertise HOST",
            "Host or whole URL to which Danube's clients connect.",
            shown="--host",
            parse=text,
        ),
    )

    @property
    def wanted(self) -> bool:
        """Whether the doors are to be opened, if they can be."""
        return self.mode != "off"

    @property
    def demanded(self) -> bool:
        """Whether a broker without them must not start."""
        named = self.port is not None or self.admin_port is not None
        return self.mode == "on" or (self.wanted and named)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """TLS and tokens, for all doors."""

    tls_cert: Path | None = field(
        default=None,
        metadata=setting(
            "--tls-cert FILE",
            "Certificate of the broker and those above it, PEM. All ports then speak only TLS.",
            parse=folder,
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=setting(
            "--tls-key FILE", "Key of --tls-cert, PEM, without a password.", parse=folder
        ),
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=setting(
            "--tls-client-ca FILE",
            "Authorities, PEM. Every client must present a certificate signed by one of them.",
            parse=folder,
        ),
    )
    tokens: Path | None = field(
        default=None,
        metadata=setting(
            "--tokens FILE",
            "File with lines of NAME TOKEN. Every connection must then present one of the tokens.",
            parse=folder,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where and how streams and timelines are kept."""

    memory_bytes: int = field(
        default=256 * MIB,
        metadata=setting(
            "--stream-memory SIZE",
            "Memory for the newest messages of all streams, for consumers that keep up.",
            key="memory",
            parse=size(1 * MIB, LIMIT_BYTES_MAX),
        ),
    )
    segment_bytes: int = field(
        default=128 * MIB,
        metadata=setting(
            "--segment-size SIZE",
            "Size of a journal file: how much a start replays, and how much is freed at once.",
            key="segment",
            parse=size(1 * MIB, 4096 * MIB),
        ),
    )
    object_store: str = field(
        default="",
        metadata=setting(
            "--object-store URL",
            "Store for streams of durability object: s3://bucket/folder, gs://bucket or az://container.",
            parse=store_url,
            secret=True,
        ),
    )
    tier: str = field(
        default="",
        metadata=setting(
            "--tier URL",
            "Store to which sealed segments of --data are moved.",
            parse=store_url,
            secret=True,
        ),
    )
    tier_after_ms: int = field(
        default=3_600_000,
        metadata=setting(
            "--tier-after TIME",
            "Move a segment to --tier once its newest message is this old.",
            key="tier_after",
            parse=duration_ms(0, TIER_AFTER_S_MAX),
        ),
    )
    key_file: Path | None = field(
        default=None,
        metadata=setting(
            "--key-file FILE", "Keys for encryption at rest; see `ister keys`.", parse=folder
        ),
    )
    accept_unencrypted: bool = field(
        default=False,
        metadata=setting(
            "--accept-unencrypted",
            "Accept data that was written without keys when --key-file is given, once.",
            parse=switch,
        ),
    )
    timelines: str = field(
        default="",
        repr=False,
        metadata=setting(
            "--timelines URL",
            "PostgreSQL database for timelines: postgresql://user@host/db.",
            shown="in --data",
            parse=database_url,
            secret=True,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The broker's own log, on stderr."""

    level: str = field(
        default="info",
        metadata=setting(
            "--log-level LEVEL",
            "Least serious event to write: debug, info, warning or error.",
            parse=choice("debug", "info", "warning", "error"),
        ),
    )
    format: str = field(
        default="auto",
        metadata=setting(
            "--log-format FORMAT",
            "Lines for people (console), JSON for machines (json), or auto: console on a terminal.",
            parse=choice("auto", "console", "json"),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownConfig:
    """How the broker ends."""

    deadline_ms: int = field(
        default=10_000,
        metadata=setting(
            "--shutdown-deadline TIME",
            "Time for queues to empty at shutdown; less than the 30 s that Kubernetes waits.",
            key="deadline",
            parse=duration_ms(0, 3600),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything `ister serve` needs to know."""

    name: str = field(
        default="",
        metadata=setting(
            "--name NAME",
            "Name of the broker in reports and logs.",
            shown="host name",
            parse=_plain_name,
        ),
    )
    data: Path | None = field(
        default=None,
        metadata=setting(
            "--data DIR",
            "Folder in which streams and timelines are stored.",
            shown=f"./{DEFAULT_DATA}",
            parse=folder,
        ),
    )
    ready_file: Path | None = field(
        default=None,
        metadata=setting(
            "--ready-file FILE",
            "Write the pid and the addresses here as JSON when the broker is ready.",
            parse=folder,
        ),
    )
    auto_create: str = field(
        default="live",
        metadata=setting(
            "--auto-create WORD",
            "How a missing topic is created on first use: live, stream or off; by namespace as in "
            "live,prod=off.",
            parse=auto_create,
        ),
    )
    native: NativeConfig = field(default_factory=NativeConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    log: LogConfig = field(default_factory=LogConfig)
    shutdown: ShutdownConfig = field(default_factory=ShutdownConfig)
    limits: Limits = field(default_factory=Limits)

    @property
    def http_host(self) -> str:
        """The address of the HTTP door."""
        return self.http.host or self.native.host

    @property
    def http_names(self) -> list[str]:
        """The host names that are accepted in HTTP requests. IP addresses are always accepted."""
        machine = socket.gethostname()
        own = ["localhost", self.http_host, machine, machine.partition(".")[0]]
        return [*own, *self.http.allowed_hosts.split(",")]

    @property
    def grpc_host(self) -> str:
        """The address of the gRPC doors."""
        return self.grpc.host or self.native.host

    @property
    def grpc_port(self) -> int:
        """The port for Danube's clients."""
        return GRPC_PORT if self.grpc.port is None else self.grpc.port

    @property
    def admin_port(self) -> int:
        """The port for Danube's admin tool."""
        return ADMIN_PORT if self.grpc.admin_port is None else self.grpc.admin_port

    @property
    def data_folder(self) -> Path:
        """Where streams are kept."""
        return self.data or DEFAULT_DATA


PARTS: dict[str, type[Any]] = {
    "native": NativeConfig,
    "http": HttpConfig,
    "grpc": GrpcConfig,
    "security": SecurityConfig,
    "storage": StorageConfig,
    "log": LogConfig,
    "shutdown": ShutdownConfig,
}


def all_settings() -> list[Setting]:
    """Return every setting there is, for the sources, the help and the docs."""
    found = settings_of(ServerConfig, "")
    for name, part in PARTS.items():
        found += settings_of(part, name)
    return found + [_limit_setting(one.name, cast("int", one.default)) for one in fields(Limits)]


def _limit_setting(name: str, default: int) -> Setting:
    if not name.endswith("_bytes_max"):
        parse = count(1, LIMIT_COUNT_MAX)
    elif name in ("message_bytes_max", "batch_bytes_max"):
        parse = size(1 * KIB, BATCH_BYTES_CEILING)
    else:
        parse = size(1 * KIB, LIMIT_BYTES_MAX)
    shown = size_text(default) if name.endswith("_bytes_max") else f"{default:,}"
    return Setting(
        part="limits",
        key=name,
        flag=f"--limit {name}=",
        variable=LIMIT_VARIABLE + name.upper(),
        parse=parse,
        default=default,
        why=f"Default {shown}.",
    )
