"""Schemas as Spark writes them: `order_id string, lines array<struct<item: string, n: int>>`.

A small parser, for messages before Spark starts. What it accepts Spark accepts; the few rare forms
that it does not know (`interval day to second`) it lets pass.
"""

import re
from dataclasses import dataclass

from ister.base import did_you_mean

# Types nest in our topics three or four deep; Spark itself stops far later.
DEPTH_MAX = 32

_SIMPLE = {
    "bigint", "binary", "boolean", "byte", "date", "dec", "decimal", "double", "float", "int",
    "integer", "long", "numeric", "real", "short", "smallint", "string", "timestamp",
    "timestamp_ltz", "timestamp_ntz", "tinyint", "variant", "void",
}  # fmt: skip
_SIZED = {"dec": 2, "decimal": 2, "numeric": 2, "char": 1, "character": 1, "varchar": 1}
_NESTED = {"array", "map", "struct"}
_FOREIGN = {
    "bool": "boolean", "bytes": "binary", "datetime": "timestamp", "float32": "float",
    "float64": "double", "int32": "int", "int64": "bigint", "json": "string", "list": "array",
    "number": "double", "object": "struct", "str": "string", "text": "string", "time": "timestamp",
    "uuid": "string",
}  # fmt: skip

_TOKEN = re.compile(r"\s+|`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\w+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DdlColumn:
    """A field of a schema, with its type in lower case and without spaces."""

    name: str
    type: str


class BadDdlError(ValueError):
    """A schema that Spark would refuse; the text says why."""


def parse_ddl(text: str) -> tuple[DdlColumn, ...]:
    """Return the columns of a field list, or raise `BadDdlError`."""
    parser = _Parser(text)
    columns = parser.fields(end="", depth=0)
    lowered: set[str] = set()
    for column in columns:
        if column.name.lower() in lowered:
            raise BadDdlError(f"column `{column.name}` is there twice")
        lowered.add(column.name.lower())
    return columns


def check_type(text: str) -> str:
    """Return a type as Spark writes it, or raise `BadDdlError`."""
    parser = _Parser(text)
    found = parser.type(0)
    if parser.peek():
        raise BadDdlError(f"`{parser.peek()}` after the type `{found}` is one too many")
    return found


class _Parser:
    """Goes over the tokens once, from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens = [token for token in _TOKEN.findall(text) if not token.isspace()]
        self.slot = 0

    def peek(self) -> str:
        return self.tokens[self.slot] if self.slot < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.slot += 1
        return token

    def fields(self, *, end: str, depth: int) -> tuple[DdlColumn, ...]:
        """Return `name type, name: type ...` up to `end`."""
        columns: list[DdlColumn] = []
        while True:
            columns.append(self.field(depth, last=columns[-1].name if columns else ""))
            token = self.take()
            if token == end:
                return tuple(columns)
            if token != ",":
                raise BadDdlError(_no_comma(token, columns[-1], end))

    def field(self, depth: int, *, last: str) -> DdlColumn:
        name = self.take()
        if not name:
            raise BadDdlError(f"ends after the comma behind `{last}`" if last else "has no columns")
        if not re.match(r"\w|`", name):
            raise BadDdlError(f"expected the name of a column, found `{name}`")
        if self.peek() == ":":
            self.take()
        if self.peek() in ("", ",", ">"):
            raise BadDdlError(f"column `{name}` has no type: write `{name} string`")
        found = DdlColumn(name.strip("`").replace("``", "`"), self.type(depth, of=name))
        if self.peek().lower() == "not":
            self.take()
            if self.take().lower() != "null":
                raise BadDdlError(f"column `{name}`: after NOT comes NULL")
        if self.peek().lower() == "comment":
            self.take()
            if not self.take().startswith("'"):
                raise BadDdlError(f"column `{name}`: COMMENT needs a text in single quotes")
        return found

    def type(self, depth: int, *, of: str = "") -> str:
        if depth > DEPTH_MAX:
            raise BadDdlError(f"types are nested deeper than {DEPTH_MAX} levels")
        word = self.take().lower()
        if word in _NESTED and self.peek() == "<":
            return self.nested(word, depth + 1)
        if word in _SIZED and self.peek() == "(":
            return f"{word}({self.sizes(word)})"
        if word == "timestamp" and self.peek().lower() in ("without", "with"):
            raise BadDdlError("write `timestamp_ntz` for a time without a zone, else `timestamp`")
        if word in _SIMPLE or word == "interval":
            while word == "interval" and re.match(r"\w", self.peek()):
                self.take()
            return word
        raise BadDdlError(_no_type(word, of))

    def nested(self, word: str, depth: int) -> str:
        self.take()
        if word == "struct":
            columns = self.fields(end=">", depth=depth)
            return "struct<" + ",".join(f"{one.name}:{one.type}" for one in columns) + ">"
        inner = [self.type(depth)]
        if word == "map":
            if self.take() != ",":
                raise BadDdlError("a map has two types: write `map<string, int>`")
            inner.append(self.type(depth))
        if self.take() != ">":
            raise BadDdlError(f"`{word}<` has no closing `>`")
        return f"{word}<{','.join(inner)}>"

    def sizes(self, word: str) -> str:
        self.take()
        found: list[str] = []
        while (token := self.take()) != ")":
            if not (token.isdecimal() or token == ",") or len(found) > 2:
                example = "decimal(12, 2)" if _SIZED[word] == 2 else f"{word}(10)"
                raise BadDdlError(f"`{word}` takes numbers in parentheses: write `{example}`")
            found.append(token)
        return "".join(found)


def _no_type(word: str, of: str) -> str:
    column = f"column `{of.strip('`')}`: " if of else ""
    if word in _NESTED:
        example = {"array": "array<string>", "map": "map<string, int>", "struct": "struct<a: int>"}
        return f"{column}`{word}` needs its types: write `{example[word]}`"
    if word in ("char", "character", "varchar"):
        return f"{column}`{word}` needs a length; `string` has none"
    foreign = _FOREIGN.get(word)
    near = f", did you mean `{foreign}`?" if foreign else ""
    near = near or did_you_mean(word, sorted(_SIMPLE | _NESTED))
    hint = near or f": types are {', '.join(sorted(_SIMPLE))}"
    return f"{column}`{word}` is no type{hint}"


def _no_comma(token: str, column: DdlColumn, end: str) -> str:
    if not token:
        return f"`{end}` is missing at the end"
    return f"expected a comma after column `{column.name}`, found `{token}`"
