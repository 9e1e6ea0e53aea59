"""The words of a `.proto` text: names, numbers, strings and signs, without comments."""

import re
from typing import NamedTuple

from ister.base.errors import BadSchemaError
from ister.schemas.bounds import NODES_MAX

# Ten words for each part that a schema may have.
_TOKENS_MAX = 10 * NODES_MAX
_TOKEN = re.compile(
    r"""
      (?P<space>  \s+ | //[^\n]* | /\*.*?\*/ )
    | (?P<number> (?: 0[xX][0-9a-fA-F]+ | (?:\d+\.\d* | \.?\d+) (?:[eE][+-]?\d+)? ) (?![\w.]) )
    | (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
    | (?P<string> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<sign>   [{}()\[\]<>=;,.:+\-/] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL
)
_SIMPLE_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}


class Token(NamedTuple):
    """A word of the text. `kind` is name, number, string or sign, or end behind the last."""

    kind: str
    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    """Return the words of `text` and a last one that is its end. Raises `BadSchemaError`."""
    tokens: list[Token] = []
    position, line = 0, 1
    while position < len(text):
        if len(tokens) == _TOKENS_MAX:
            raise BadSchemaError(f"the text has more than {_TOKENS_MAX} words")
        match = _TOKEN.match(text, position)
        if match is None:
            raise BadSchemaError(f"line {line}: {text[position : position + 20]!r} is no word")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(Token(kind, match.group(), line))
        line += match.group().count("\n")
        position = match.end()
    tokens.append(Token("end", "", line))
    return tokens


def unquoted(text: str) -> bytes:
    """Return what a string stands for, given with its quotes."""
    return _ESCAPE.sub(_unescaped, text[1:-1].encode())


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[:1].isdigit() and code[0] < ord("8"):
        return bytes([int(code, 8) & 0xFF])
    if code[:1] in (b"u", b"U") and len(code) > 1:
        number = int(code[1:], 16)
        is_character = number < 0x110000 and not 0xD800 <= number < 0xE000
        return chr(number).encode() if is_character else b"?"
    return _SIMPLE_ESCAPES.get(code, code)
