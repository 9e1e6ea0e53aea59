"""The configuration of `ister serve`: one frozen dataclass per part, read once and checked whole.

A setting is looked for in this order: flag, `ISTER_*` variable, TOML file, default. Every mistake
of every source is found before any is reported, as one `ConfigError`.
"""

import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from ister.base import ADMIN_PORT, GRPC_PORT, HTTP_PORT, NATIVE_PORT, parse_plain, size_text
from ister.base.errors import BadNameError, ConfigError
from ister.base.limits import BATCH_BYTES_CEILING, KIB, MIB, Limits
from ister.server.contradictions import contradictions
from ister.server.native import BUSY_POLL_US, HEARTBEAT_MS
from ister.server.security import SecurityConfig
from ister.server.settings import (
    Setting,
    Source,
    Value,
    auto_create,
    choice,
    count,
    database_url,
    duration_ms,
    folder,
    host_name,
    resolve,
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

_LIMIT_VARIABLE = "ISTER_LIMITS_"


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
            flag="--host",
            parse=host_name,
            why="Address to listen on; this machine only by default. For others, see --tls-cert.",
        ),
    )
    port: int = field(
        default=NATIVE_PORT,
        metadata=setting(
            flag="--port",
            parse=count(0, PORT_MAX),
            why="Port of the native protocol; 0 picks a free one.",
        ),
    )
    heartbeat_ms: int = field(
        default=HEARTBEAT_MS,
        metadata=setting(
            flag="--heartbeat",
            key="heartbeat",
            parse=duration_ms(0.1, 3600),
            why="A peer silent for this long is asked for a sign of life, and soon after cut off.",
        ),
    )
    busy_poll_us: int = field(
        default=BUSY_POLL_US,
        metadata=setting(
            flag="--busy-poll",
            parse=count(0, 10_000),
            why="Microseconds to poll before sleeping while small messages come thick; 0: never.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The HTTP door: metrics and health."""

    host: str = field(
        default="",
        metadata=setting(
            flag="--http-host",
            parse=host_name,
            why="Address of the HTTP door; that of --host unless given.",
        ),
    )
    port: int = field(
        default=HTTP_PORT,
        metadata=setting(
            flag="--http-port",
            parse=count(0, PORT_MAX),
            why="Port for /metrics, /healthz and /readyz; 0 picks a free one.",
        ),
    )
    allowed_hosts: str = field(
        default="",
        metadata=setting(
            flag="--http-allowed-hosts",
            parse=text,
            why="More host names to accept in HTTP requests, separated by commas; * accepts any.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """The gRPC doors, for Danube's clients and admin tool. They need the extra `grpc`."""

    mode: str = field(
        default="auto",
        metadata=setting(
            flag="--grpc",
            parse=choice("auto", "on", "off"),
            why="Whether the gRPC doors are opened; auto opens them if ister[grpc] is installed.",
        ),
    )
    host: str = field(
        default="",
        metadata=setting(
            flag="--grpc-host",
            parse=host_name,
            why="Address of the gRPC doors; that of --host unless given.",
        ),
    )
    port: int | None = field(
        default=None,
        metadata=setting(
            flag="--grpc-port",
            parse=count(0, PORT_MAX),
            why=f"Port for Danube's clients, {GRPC_PORT} unless given; 0 picks a free one.",
        ),
    )
    admin_port: int | None = field(
        default=None,
        metadata=setting(
            flag="--admin-port",
            parse=count(0, PORT_MAX),
            why=f"Port for Danube's admin tool, {ADMIN_PORT} unless given; 0 picks a free one.",
        ),
    )
    advertise: str = field(
        default="",
        metadata=setting(
            flag="--advertise",
            parse=text,
            why="Host, or whole URL, that Danube's clients are told to connect to.",
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
class StorageConfig:
    """Where and how streams and timelines are kept."""

    memory_bytes: int = field(
        default=256 * MIB,
        metadata=setting(
            flag="--stream-memory",
            key="memory",
            parse=size(1 * MIB, LIMIT_BYTES_MAX),
            why="The newest messages of all streams kept in memory, for consumers that keep up.",
        ),
    )
    segment_bytes: int = field(
        default=128 * MIB,
        metadata=setting(
            flag="--segment-size",
            key="segment",
            parse=size(1 * MIB, 4096 * MIB),
            why="Size of a journal file; a restart reads what was written since the last one.",
        ),
    )
    object_store: str = field(
        default="",
        metadata=setting(
            flag="--object-store",
            parse=store_url,
            why="URL of the store for topics with durability 'object': s3://bucket/folder, ...",
            secret=True,
        ),
    )
    tier: str = field(
        default="",
        metadata=setting(
            flag="--tier",
            parse=store_url,
            why="URL of a store that sealed segments of the data folder are moved to.",
            secret=True,
        ),
    )
    tier_after_ms: int = field(
        default=3_600_000,
        metadata=setting(
            flag="--tier-after",
            key="tier_after",
            parse=duration_ms(0, TIER_AFTER_S_MAX),
            why="Age of a segment's newest message at which it is moved to --tier.",
        ),
    )
    key_file: Path | None = field(
        default=None,
        metadata=setting(
            flag="--key-file",
            parse=folder,
            why="Keys for encryption at rest; see `ister keys`. New files are encrypted with it.",
        ),
    )
    accept_unencrypted: bool = field(
        default=False,
        metadata=setting(
            flag="--accept-unencrypted",
            parse=switch,
            why="Start with --key-file although what is stored was written without keys.",
        ),
    )
    timelines: str = field(
        default="",
        repr=False,
        metadata=setting(
            flag="--timelines",
            parse=database_url,
            why="URL of a PostgreSQL database for timelines, in place of the data folder.",
            secret=True,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The broker's own log, on stderr."""

    level: str = field(
        default="info",
        metadata=setting(
            flag="--log-level",
            parse=choice("debug", "info", "warning", "error"),
            why="The least serious event to write; debug tells of every connection.",
        ),
    )
    format: str = field(
        default="auto",
        metadata=setting(
            flag="--log-format",
            parse=choice("auto", "console", "json"),
            why="Lines for people or JSON for machines; auto looks whether stderr is a terminal.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownConfig:
    """How the broker ends."""

    deadline_ms: int = field(
        default=10_000,
        metadata=setting(
            flag="--shutdown-deadline",
            key="deadline",
            parse=duration_ms(0, 3600),
            why="How long queued messages may take to leave; below the 30 s that Kubernetes waits.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything `ister serve` needs to know."""

    name: str = field(
        default="",
        metadata=setting(
            flag="--name",
            parse=_plain_name,
            why="What the broker calls itself to clients; the host's name unless given.",
        ),
    )
    data: Path | None = field(
        default=None,
        metadata=setting(
            flag="--data",
            parse=folder,
            why="Folder that streams are kept in; ister-data here unless given.",
        ),
    )
    ready_file: Path | None = field(
        default=None,
        metadata=setting(
            flag="--ready-file",
            parse=folder,
            why="Written as JSON with the pid and the addresses once every door is open.",
        ),
    )
    auto_create: str = field(
        default="live",
        metadata=setting(
            flag="--auto-create",
            parse=auto_create,
            why="What a missing topic is made by its use: live, stream or off; 'live,shop=off'.",
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


_PARTS: dict[str, type[Any]] = {
    "native": NativeConfig,
    "http": HttpConfig,
    "grpc": GrpcConfig,
    "security": SecurityConfig,
    "storage": StorageConfig,
    "log": LogConfig,
    "shutdown": ShutdownConfig,
}


def read_config(
    *,
    flags: Mapping[str, object],
    limit_flags: Sequence[str] = (),
    environment: Mapping[str, str],
    file: Path | None = None,
) -> ServerConfig:
    """Return the configuration, or raise `ConfigError` with every mistake.

    `flags` are by path as in `native.port`, `None` for those not given; `limit_flags` are
    `name=value`.
    """
    mistakes: list[str] = []
    settings = all_settings()
    sources = [
        _flag_source(settings, flags, limit_flags, mistakes),
        _variable_source(settings, environment, mistakes),
        _file_source(settings, file, mistakes),
    ]
    values = resolve(settings, sources, mistakes)
    config = _build(values)
    mistakes += contradictions(config)
    if mistakes:
        raise ConfigError(mistakes)
    return config


def all_settings() -> list[Setting]:
    """Return every setting there is, for the sources, the help and the docs."""
    found = settings_of(ServerConfig, "")
    for name, part in _PARTS.items():
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
        variable=_LIMIT_VARIABLE + name.upper(),
        parse=parse,
        default=default,
        why=f"Default {shown}.",
    )


def _flag_source(
    settings: list[Setting],
    flags: Mapping[str, object],
    limit_flags: Sequence[str],
    mistakes: list[str],
) -> Source:
    by_path = {one.path: one for one in settings}
    values: dict[str, tuple[str, object]] = {
        path: (_blame(by_path[path], by_path[path].flag, f" {raw}"), raw)
        for path, raw in flags.items()
        if raw is not None
    }
    for words in limit_flags:
        name, equals, raw = words.partition("=")
        path = f"limits.{name.strip()}"
        if not equals or not raw:
            mistakes.append(f"--limit {words}: write it as name=value")
        elif path not in by_path:
            mistakes.append(f"--limit {words}: no such limit{_nearest(name, _limit_names())}")
        else:
            values[path] = (f"--limit {words}", raw)
    return Source(values)


def _variable_source(
    settings: list[Setting], environment: Mapping[str, str], mistakes: list[str]
) -> Source:
    values = {}
    for one in settings:
        # An empty variable is how shells and compose files say "not set".
        if raw := environment.get(one.variable):
            values[one.path] = (_blame(one, one.variable, f"={raw}"), raw)
    known = {one.variable for one in settings}
    for name in sorted(environment):
        # Other variables of our prefix may belong to clients or to Kubernetes; these are ours.
        if name.startswith(_LIMIT_VARIABLE) and name not in known:
            near = _nearest(name.removeprefix(_LIMIT_VARIABLE).lower(), _limit_names())
            mistakes.append(f"{name}: no such limit{near}")
    return Source(cast("dict[str, tuple[str, object]]", values))


def _blame(one: Setting, name: str, value: str) -> str:
    """Return the words to blame a setting with."""
    # A URL in place of a path may contain a password.
    is_hidden = one.secret or (one.parse is folder and "://" in value)
    return name if is_hidden else name + value


def _file_source(settings: list[Setting], file: Path | None, mistakes: list[str]) -> Source:
    if file is None:
        return Source({})
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        mistakes.append(f"{file}: cannot be read: {error.strerror or error}")
        return Source({})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        mistakes.append(f"{file}: is no TOML: {error}")
        return Source({})
    paths = {one.path: one for one in settings}
    values: dict[str, tuple[str, object]] = {}
    for key, value in tables.items():
        if not isinstance(value, dict):
            _take(values, paths, mistakes, path=key, value=value, label=f"{file}: {key}")
            continue
        if key not in _PARTS and key != "limits":
            mistakes.append(f"{file}: [{key}]: no such table{_nearest(key, [*_PARTS, 'limits'])}")
            continue
        for inner, raw in value.items():
            label = f"{file}: [{key}] {inner}"
            _take(values, paths, mistakes, path=f"{key}.{inner}", value=raw, label=label)
    return Source(values)


def _take(
    values: dict[str, tuple[str, object]],
    paths: Mapping[str, Setting],
    mistakes: list[str],
    *,
    path: str,
    value: object,
    label: str,
) -> None:
    if path in paths:
        values[path] = (_blame(paths[path], label, f" = {value!r}"), value)
        return
    part, _, _ = path.rpartition(".")
    siblings = [p.rpartition(".")[2] for p in sorted(paths) if p.rpartition(".")[0] == part]
    mistakes.append(f"{label}: no such setting{_nearest(path.rpartition('.')[2], siblings)}")


def _build(values: Mapping[str, Value | None]) -> ServerConfig:
    parts = {
        name: part(**_arguments(part, name, values))
        for name, part in {**_PARTS, "limits": Limits}.items()
    }
    return ServerConfig(**_arguments(ServerConfig, "", values), **parts)


def _arguments(part: type[Any], name: str, values: Mapping[str, Value | None]) -> dict[str, Any]:
    found = {}
    for one in fields(part):
        key = one.metadata.get("key") or one.name
        path = f"{name}.{key}" if name else key
        if path in values:
            found[one.name] = values[path]
    return found


def _limit_names() -> list[str]:
    return [one.name for one in fields(Limits)]


def _nearest(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word.strip(), known, n=1, cutoff=0.6)
    return f", did you mean `{near[0]}`?" if near else f": there are {', '.join(known)}"
