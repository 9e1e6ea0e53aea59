"""Where settings come from: flags, `ISTER_*` variables, a TOML file, in this order, then defaults.

Every mistake of every source is found before any is reported, as one `ConfigError`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from ister.base import did_you_mean
from ister.base.errors import ConfigError
from ister.base.limits import Limits
from ister.config.config import LIMIT_VARIABLE, PARTS, ServerConfig, all_settings
from ister.config.contradictions import contradictions
from ister.config.settings import Setting, Source, Value, folder, resolve


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
        if name.startswith(LIMIT_VARIABLE) and name not in known:
            near = _nearest(name.removeprefix(LIMIT_VARIABLE).lower(), _limit_names())
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
        if key not in PARTS and key != "limits":
            mistakes.append(f"{file}: [{key}]: no such table{_nearest(key, [*PARTS, 'limits'])}")
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
        for name, part in {**PARTS, "limits": Limits}.items()
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
    return did_you_mean(word.strip(), known) or f": there are {', '.join(known)}"
