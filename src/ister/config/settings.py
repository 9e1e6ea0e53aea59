"""How one setting is declared, found in its sources, parsed and checked.

A setting is a dataclass field with `metadata=setting(...)`: bounds, the flag and variable that set
it, and a sentence of why. Everything here is a function of its arguments; nothing reads
the environment or a file by itself.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ister.base import (
    NO_SECRETS,
    AutoCreate,
    parse_size,
    parse_span,
    size_text,
    span_text,
    without_secrets,
)

Value = str | int | float | Path
Parse = Callable[[object], Value]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a setting comes from and what it accepts. `part` is its table, empty for none."""

    part: str
    key: str
    flag: str
    variable: str
    parse: Parse
    default: Value | None
    # What it is, in a sentence or two: for the help of the command line and for the guide.
    why: str
    # What stands for its value in the help; empty for a switch, which has none.
    metavar: str = ""
    # The default as people write it.
    shown: str = ""
    # Its value is not to be shown: there may be a password in it.
    secret: bool = False

    @property
    def path(self) -> str:
        """`native.port`, or `data` for a setting outside any table."""
        return f"{self.part}.{self.key}" if self.part else self.key


@dataclass(frozen=True, slots=True)
class Source:
    """One place that may set settings: values by path, each with the words to blame it with."""

    values: Mapping[str, tuple[str, object]]


def setting(
    flag: str,
    why: str,
    *,
    parse: Parse,
    key: str = "",
    shown: str = "",
    secret: bool = False,
) -> dict[str, Any]:
    """Return the metadata that makes a dataclass field a setting.

    `flag` is as in the help, with what stands for its value: `--port PORT`. The variable follows
    from it; the name in the file is `key` or that of the field. `shown` is the default, where it
    is not the value of the field.
    """
    flag, _, metavar = flag.partition(" ")
    variable = "ISTER_" + flag.lstrip("-").replace("-", "_").upper()
    found = {"flag": flag, "variable": variable, "key": key, "parse": parse, "why": why}
    return found | {"metavar": metavar, "shown": shown, "secret": secret}


def settings_of(part: type[Any], name: str) -> list[Setting]:
    """Return the settings that a config dataclass declares, for the table `name`."""
    found = []
    for one in fields(part):
        if one.metadata:
            default = None if one.default is MISSING else one.default
            found.append(
                Setting(
                    part=name,
                    key=one.metadata["key"] or one.name,
                    flag=one.metadata["flag"],
                    variable=one.metadata["variable"],
                    parse=one.metadata["parse"],
                    default=default,
                    why=one.metadata["why"],
                    metavar=one.metadata["metavar"],
                    shown=one.metadata["shown"] or _shown(one.name, default),
                    secret=one.metadata["secret"],
                )
            )
    return found


def _shown(name: str, value: Value | None) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return size_text(value)
    if name.endswith("_ms") and isinstance(value, int):
        return span_text(value)
    return "" if value is None or value is False else str(value)


def resolve(
    settings: list[Setting], sources: list[Source], mistakes: list[str]
) -> dict[str, Value | None]:
    """Return each setting's value by path: of the first source that has it, else its default.

    What cannot be parsed is added to `mistakes` and leaves the default.
    """
    values: dict[str, Value | None] = {}
    for one in settings:
        values[one.path] = one.default
        for source in sources:
            found = source.values.get(one.path)
            if found is None:
                continue
            label, raw = found
            try:
                values[one.path] = one.parse(raw)
            except ValueError as error:
                mistakes.append(f"{label}: {error}")
            break
    return values


# What a value may look like. Each returns a parser that raises `ValueError` with the way out.


def text(raw: object) -> str:
    """Any word or sentence that is not empty."""
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("is empty: give a text")
    return raw


def auto_create(raw: object) -> str:
    """What is made by its use, for all namespaces and for some: see `AutoCreate.parse`."""
    given = text(raw)
    AutoCreate.parse(given)
    return given


def store_url(raw: object) -> str:
    """The URL of an object store, without credentials; `open_store` checks the rest."""
    url = text(raw)
    if without_secrets(url) != url and not url.startswith("file:"):
        raise ValueError(NO_SECRETS)
    return url


def database_url(raw: object) -> str:
    """The URL of a database of PostgreSQL; whoever connects to it looks closer."""
    if not isinstance(raw, str) or not raw.startswith(("postgresql://", "postgres://")):
        raise ValueError("is no URL of a database: write postgresql://host:5432/database")
    return raw


def host_name(raw: object) -> str:
    """The name or the address of a host; whether it exists is found out when it is used."""
    name = text(raw)
    try:
        # As the system's name look-up does, which raises the same error.
        name.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"is not a host name: {error}") from None
    if "\0" in name:
        raise ValueError("is not a host name: it has a zero byte in it")
    return name


def folder(raw: object) -> Path:
    """A path; `~` is the home folder."""
    path = text(raw)
    if "\0" in path:
        raise ValueError("has a zero byte in it, which no path has")
    if "://" in path:
        # Not quoted, here or later: a URL may contain a password.
        raise ValueError("is a URL: write the path of a file or a folder")
    return Path(path).expanduser()


def switch(raw: object) -> bool:
    """Whether something is wanted: `true` or `false`."""
    found = raw if isinstance(raw, bool) else {"true": True, "false": False}.get(str(raw).lower())
    if found is None:
        raise ValueError("is neither true nor false")
    return found


def choice(*words: str) -> Parse:
    """One of `words`."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or raw.lower() not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return raw.lower()

    return parse


def count(low: int, high: int) -> Parse:
    """A whole number; underscores may group its digits."""

    def parse(raw: object) -> int:
        if isinstance(raw, str) and re.fullmatch(r"-?\d[\d_]*", raw.strip()):
            raw = int(raw)
        if isinstance(raw, str) and raw.startswith(("tcp://", "udp://")):
            # Kubernetes sets <SERVICE>_PORT for every service, so one named `ister` hits ours.
            raise ValueError(
                "is a Kubernetes service link: set `enableServiceLinks: false` in the pod"
            )
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError("is no whole number")
        return _between(raw, low, high, f"{low:,}", f"{high:,}")

    return parse


def size(low: int, high: int) -> Parse:
    """A size: a number of bytes, or with a unit as in `512KiB`, `2MiB`, `1.5GB`."""

    def parse(raw: object) -> int:
        if isinstance(raw, str):
            raw = parse_size(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError("is no size: write bytes, or a unit as in 512KiB or 2MiB")
        return _between(raw, low, high, size_text(low), size_text(high))

    return parse


def duration_ms(low_s: float, high_s: float) -> Parse:
    """A time span in seconds, or with a unit as in `500ms`, `30s`, `5m`, `1h`; milliseconds."""

    def parse(raw: object) -> int:
        if isinstance(raw, str):
            raw = parse_span(raw)
        if isinstance(raw, bool) or not isinstance(raw, int | float) or raw != raw:  # noqa: PLR0124 - NaN
            raise ValueError("is no time span: write seconds, or a unit as in 500ms, 30s, 5m")
        low, high = span_text(low_s * 1000), span_text(high_s * 1000)
        return round(_between(raw, low_s, high_s, low, high) * 1000)

    return parse


_Number = TypeVar("_Number", int, float)


def _between(value: _Number, low: float, high: float, low_text: str, high_text: str) -> _Number:
    if not low <= value <= high:
        raise ValueError(f"is out of bounds: {low_text} to {high_text}")
    return value
