"""The text of a pipeline file, YAML or TOML, to values that know their lines.

Nothing is built from the text but mappings, lists and scalars. YAML's aliases are followed, within
`NODES_MAX`: a file of a few lines can name billions of values (the "billion laughs").
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

from ister.base.errors import ExtraMissingError
from ister.spark.pipelines.config.positions import ConfigEntry, ConfigNode, FileLine, Remark

# The largest pipelines people write are a few hundred lines; SQL has files of its own.
FILE_BYTES_MAX = 1024 * 1024
# 1 MiB of the densest YAML (`a,`) has half a million values; a real file has a few hundred.
NODES_MAX = 20_000
DEPTH_MAX = 32
# No number of a pipeline has more than 20 digits; Python refuses to read more than 4,300.
NUMBER_CHARACTERS_MAX = 100


class MalformedError(Exception):
    """The text is not YAML or TOML, or it exceeds a limit; `remark` says what and where."""

    def __init__(self, remark: Remark) -> None:
        super().__init__(remark)
        self.remark = remark


def parse_file(text: str, *, file: str, language: str, remarks: list[Remark]) -> ConfigNode:
    """Return the root of a file; keys that come twice are added to `remarks`.

    Raises `MalformedError`; without PyYAML, `ExtraMissingError`.
    """
    try:
        if language == "toml":
            return _parse_toml(text, file)
        return _YamlReader(file, remarks).read(text)
    except RecursionError:
        raise _error_at(file, 0, f"is nested deeper than {DEPTH_MAX} levels") from None


def node_of_arguments(value: object, origin: FileLine) -> ConfigNode:
    """Return the arguments of a Python pipeline, which all have one origin, as a node."""
    return _TomlReader(origin.file, {}).node(value, (), origin.line)


def _error_at(file: str, line: int, text: str) -> MalformedError:
    return MalformedError(Remark(FileLine(file, line), text))


# -- YAML --


@dataclass(slots=True)
class _YamlReader:
    """Turns what PyYAML composes into nodes; counts them."""

    file: str
    remarks: list[Remark]
    count: int = 0

    def read(self, text: str) -> ConfigNode:
        try:
            import yaml
        except ImportError:
            raise ExtraMissingError("a pipeline file in YAML", "spark") from None

        try:
            # Composing builds no objects of the file's choice, whatever tags it has.
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 0
            said = f"is no YAML: {error.problem}{_quotes_hint(text, line)}"
            raise _error_at(self.file, line, said) from None
        except yaml.YAMLError as error:
            raise _error_at(self.file, 0, f"is no YAML: {error}".splitlines()[0]) from None
        if root is None:
            raise _error_at(self.file, 1, "is empty: `ister pipeline new` writes one to start from")
        return self.node(root, 0)

    def node(self, found: Any, depth: int) -> ConfigNode:
        line = found.start_mark.line + 1
        self.count += 1
        if self.count > NODES_MAX:
            raise _error_at(self.file, line, f"has more than {NODES_MAX:,} values")
        if depth > DEPTH_MAX:
            raise _error_at(self.file, line, f"is nested deeper than {DEPTH_MAX} levels")
        origin = FileLine(self.file, line)
        if found.id == "mapping":
            return ConfigNode(origin, entries=tuple(self._entries(found, depth)))
        if found.id == "sequence":
            return ConfigNode(
                origin, items=tuple(self.node(item, depth + 1) for item in found.value)
            )
        is_block = found.style in ("|", ">")
        return ConfigNode(origin, scalar=_yaml_scalar(found), text_line=line + is_block)

    def _entries(self, found: Any, depth: int) -> Iterator[ConfigEntry]:
        seen: dict[str, int] = {}
        for key, value in found.value:
            line = key.start_mark.line + 1
            origin = FileLine(self.file, line)
            if key.id != "scalar":
                self.remarks.append(Remark(origin, "a key is a text"))
                continue
            if key.tag == "tag:yaml.org,2002:merge":
                # Merging would have values whose lines lie somewhere else in the file.
                self.remarks.append(Remark(origin, "`<<` is not supported: write the keys out"))
                continue
            if key.value in seen:
                said = f"key `{key.value}` is there twice, before in line {seen[key.value]}"
                self.remarks.append(Remark(origin, said))
                continue
            seen[key.value] = line
            yield ConfigEntry(key.value, origin, self.node(value, depth + 1))


def _quotes_hint(text: str, line: int) -> str:
    """Return a hint for what goes wrong most often: `{delay: ${LATE}}` without quotes."""
    lines = text.splitlines()
    is_likely = 1 <= line <= len(lines) and "${" in lines[line - 1]
    return "; inside { } and [ ] a text with ${...} needs quotes" if is_likely else ""


_YAML_INT = re.compile(r"[-+]?[0-9][0-9_]*\Z")
_YAML_TRUE = {"yes", "true", "on"}


def _yaml_scalar(found: Any) -> str | int | float | bool | None:
    """Return a scalar as YAML resolves it; times, dates and all else stay text."""
    text: str = found.value
    match found.tag.rpartition(":")[2]:
        case "null":
            return None
        case "bool":
            return text.lower() in _YAML_TRUE
        case "int" if _YAML_INT.match(text) and len(text) <= NUMBER_CHARACTERS_MAX:
            return int(text)
        case "float":
            try:
                return float(text)
            except ValueError:
                return text
    return text


# -- TOML --


def _parse_toml(text: str, file: str) -> ConfigNode:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        said = re.sub(r" \(at .*\)", "", str(error))
        raise _error_at(file, line, f"is no TOML: {said[:1].lower()}{said[1:]}") from None
    except ValueError:
        # The only other one: a number of more digits than Python reads.
        raise _error_at(file, 0, "is no TOML: a number has too many digits") from None
    if not values:
        raise _error_at(file, 1, "is empty: `ister pipeline new` writes one to start from")
    return _TomlReader(file, toml_lines(text)).node(values, (), 1)


Path = tuple[str | int, ...]


@dataclass(slots=True)
class _TomlReader:
    """Turns values into nodes; a value without a line of its own has that of what holds it."""

    file: str
    lines: Mapping[Path, tuple[int, int]]
    count: int = field(default=0)

    def node(self, value: object, path: Path, line: int) -> ConfigNode:
        line, text_line = self.lines.get(path, (line, line))
        origin = FileLine(self.file, line)
        self.count += 1
        if self.count > NODES_MAX:
            raise _error_at(self.file, line, f"has more than {NODES_MAX:,} values")
        if len(path) > DEPTH_MAX:
            raise _error_at(self.file, line, f"is nested deeper than {DEPTH_MAX} levels")
        match value:
            case Mapping():
                entries = (self._entry(str(key), value[key], path, line) for key in value)
                return ConfigNode(origin, entries=tuple(entries))
            case list() | tuple():
                items = (self.node(one, (*path, slot), line) for slot, one in enumerate(value))
                return ConfigNode(origin, items=tuple(items))
            case datetime() | date() | time():
                return ConfigNode(origin, scalar=value.isoformat(), text_line=text_line)
            case None | bool() | int() | float() | str():
                return ConfigNode(origin, scalar=value, text_line=text_line)
        return ConfigNode(origin, given=value, scalar=f"<{type(value).__name__}>")

    def _entry(self, key: str, value: object, path: Path, line: int) -> ConfigEntry:
        node = self.node(value, (*path, key), line)
        return ConfigEntry(key, node.origin, node)


_TOML_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?\Z")
_TOML_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_TOML_KEY = re.compile(rf"\s*({_TOML_PART}(?:\s*\.\s*{_TOML_PART})*)\s*=\s*(.*)")


def toml_lines(text: str) -> dict[Path, tuple[int, int]]:
    """Return the line of each key of a valid TOML text, and the line its text begins in.

    Keys of inline tables are not looked for: they have the line of the table.
    """
    lines: dict[Path, tuple[int, int]] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    closing = ""  # What ends the text of several lines that we are in.
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if closing in line else closing
            continue
        if header := _TOML_HEADER.match(line):
            table = _with_list_slots(_parts(header[2]), counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, (number, number))
                table = (*table, counts[table])
            lines.setdefault(table, (number, number))
        elif key := _TOML_KEY.match(line):
            path = (*table, *_parts(key[1]))
            for size in range(len(table) + 1, len(path)):
                lines.setdefault(path[:size], (number, number))
            quotes = key[2][:3] if key[2][:3] in ('"""', "'''") else ""
            begins_below = quotes != "" and key[2] == quotes
            lines[path] = (number, number + begins_below)
            closing = quotes if quotes and quotes not in key[2][3:] else ""
    return lines


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_TOML_PART, dotted))


def _with_list_slots(path: Path, counts: Mapping[Path, int]) -> Path:
    """Return the path of a header with the number of each list's newest item put in."""
    found: Path = ()
    for slot, part in enumerate(path):
        found = (*found, part)
        if found in counts and slot < len(path) - 1:
            found = (*found, counts[found])
    return found
