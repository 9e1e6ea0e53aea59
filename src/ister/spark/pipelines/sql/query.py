"""What can be seen in a SQL step without Spark: which views it reads, and what it does to them.

A rough reading of tokens, not a grammar. It must raise no false alarm: a name counts as a view
only where nothing else can stand (right behind FROM, JOIN, or a comma of such a list), and what it
does not understand it passes over. Spark reads the SQL again, and has the last word.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What is not closed goes to the end: to begin anew behind each of its characters would take hours.
_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<text>'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.|"")*(?:"|\Z))
    |(?P<quoted>`(?:[^`]|``)*(?:`|\Z))
    |(?P<word>[^\W\d]\w*)
    |(?P<number>\d\w*(?:\.\d*)?)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)

# Behind FROM or JOIN these are no names.
_NOT_A_VIEW = {"lateral", "values", "table", "select", "unnest", "with", "from"}
# A pair of parentheses that begins so holds a query; in any other, FROM belongs to a function,
# as in `extract(hour FROM at)`.
_QUERY_STARTS = {"select", "with", "from", "table", "values"}
# Behind a view these begin the next part of the query; anything else is its alias.
_NO_ALIAS = {
    "where", "group", "having", "order", "limit", "union", "intersect", "except", "minus", "join",
    "inner", "left", "right", "full", "cross", "natural", "semi", "anti", "on", "using", "window",
    "lateral", "tablesample", "pivot", "unpivot", "sort", "cluster", "distribute", "qualify",
}  # fmt: skip
_AGGREGATES = {
    "any_value", "approx_count_distinct", "avg", "collect_list", "collect_set", "count", "count_if",
    "first", "last", "max", "max_by", "mean", "min", "min_by", "percentile", "percentile_approx",
    "stddev", "sum", "variance",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SqlToken:
    """A token of SQL, with its text as written. `line` counts from zero."""

    kind: str
    text: str
    line: int

    @property
    def low(self) -> str:
        """The word in lower case, for comparisons with key words; a quoted name is none."""
        return self.text.lower() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class ViewName:
    """A view that a query reads."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Query:
    """What can be seen of a query."""

    views: tuple[ViewName, ...]
    is_query: bool
    statement_count: int
    has_aggregation: bool
    has_join: bool
    # The words of the GROUP BY clauses, in lower case.
    grouped_by: frozenset[str]


def analyse(sql: str) -> Query:
    """Return what can be seen of a query; never raises."""
    tokens = list(_tokens(sql))
    own_names = _names_of_ctes(tokens)
    views = tuple(
        ViewName(token.text.strip("`"), token.line)
        for token in _references(tokens)
        if token.text.strip("`").lower() not in own_names
    )
    first = next((token.low for token in tokens if token.text != "("), "")
    grouped = frozenset(_grouped_words(tokens))
    return Query(
        views=views,
        is_query=first in _QUERY_STARTS or first == "",
        statement_count=_statements(tokens),
        has_aggregation=bool(grouped) or _has_bare_aggregate(tokens),
        has_join=any(token.low == "join" for token in tokens),
        grouped_by=grouped,
    )


def without_semicolon(sql: str) -> str:
    """Return a statement as `spark.sql` takes it: without what ends it."""
    return re.sub(r"(?:\s|;)*\Z", "", sql)


def _tokens(sql: str) -> Iterator[SqlToken]:
    line = 0
    for found in _TOKEN.finditer(sql):
        kind = found.lastgroup or "sign"
        if kind != "skip":
            yield SqlToken(kind, found[0], line)
        line += found[0].count("\n")


def _is_name(token: SqlToken) -> bool:
    return token.kind == "quoted" or (token.kind == "word" and token.low not in _NOT_A_VIEW)


def _names_of_ctes(tokens: Sequence[SqlToken]) -> set[str]:
    """Return the names that WITH gives: `name AS (` and `name (columns) AS (`."""
    if not any(token.low == "with" for token in tokens):
        return set()
    names = set()
    for slot, token in enumerate(tokens):
        if token.low != "as" or slot == 0 or _text(tokens, slot + 1) != "(":
            continue
        before = slot - 1
        if tokens[before].text == ")":
            while before > 0 and tokens[before].text != "(":
                before -= 1
            before -= 1
        if before >= 0 and tokens[before].kind in ("word", "quoted"):
            names.add(tokens[before].text.strip("`").lower())
    return names


def _references(tokens: Sequence[SqlToken]) -> Iterator[SqlToken]:
    """Yield the names behind FROM and JOIN, and those of the lists behind FROM."""
    begins_query = _query_starts(tokens)
    holds_query = [True]  # For each open parenthesis, the whole first.
    for slot, token in enumerate(tokens):
        if token.text == "(":
            holds_query.append(begins_query[slot + 1])
        elif token.text == ")" and len(holds_query) > 1:
            holds_query.pop()
        elif token.low == "join":
            yield from _name_at(tokens, slot + 1)
        elif token.low == "from" and holds_query[-1] and not _is_distinct_from(tokens, slot):
            yield from _list_at(tokens, slot + 1)


def _query_starts(tokens: Sequence[SqlToken]) -> list[bool]:
    """Return for each slot whether a query begins there, behind more parentheses or not."""
    found = [False] * (len(tokens) + 1)
    for slot in range(len(tokens) - 1, -1, -1):
        is_open = tokens[slot].text == "("
        found[slot] = found[slot + 1] if is_open else tokens[slot].low in _QUERY_STARTS
    return found


def _is_distinct_from(tokens: Sequence[SqlToken], slot: int) -> bool:
    return slot > 0 and tokens[slot - 1].low == "distinct"


def _list_at(tokens: Sequence[SqlToken], slot: int) -> Iterator[SqlToken]:
    """Yield the names of `a, b AS x, c y`, up to anything that is more than that."""
    while True:
        yield from _name_at(tokens, slot)
        if slot >= len(tokens) or not _is_name(tokens[slot]):
            return
        slot += 1
        if _low(tokens, slot) == "as":
            slot += 1
        if slot < len(tokens) and _is_name(tokens[slot]) and tokens[slot].low not in _NO_ALIAS:
            slot += 1
        if _text(tokens, slot) != ",":
            return
        slot += 1


def _name_at(tokens: Sequence[SqlToken], slot: int) -> Iterator[SqlToken]:
    """Yield the name that stands here, unless it is a function or of another catalogue."""
    if _low(tokens, slot) == "stream" and slot + 1 < len(tokens) and _is_name(tokens[slot + 1]):
        slot += 1
    if slot < len(tokens) and _is_name(tokens[slot]) and _text(tokens, slot + 1) not in ("(", "."):
        yield tokens[slot]


def _grouped_words(tokens: Sequence[SqlToken]) -> Iterator[str]:
    inside = False
    depth = 0
    for slot, token in enumerate(tokens):
        if token.low == "group" and _low(tokens, slot + 1) == "by":
            inside, depth = True, 0
        elif inside:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            inside = depth >= 0 and not _ends_grouping(tokens, slot)
            if inside and token.kind in ("word", "quoted"):
                yield token.text.strip("`").lower()


def _ends_grouping(tokens: Sequence[SqlToken], slot: int) -> bool:
    if tokens[slot].low == "window":  # The function has a parenthesis, the clause a name.
        return _text(tokens, slot + 1) != "("
    return tokens[slot].low in ("having", "order", "limit", "union", "except", "intersect")


def _has_bare_aggregate(tokens: Sequence[SqlToken]) -> bool:
    """Whether `sum(x)` stands without `OVER`, which would make it no aggregation of the query."""
    for slot, token in enumerate(tokens):
        if token.low in _AGGREGATES and _text(tokens, slot + 1) == "(":
            end = _find_closing(tokens, slot + 1)
            if _low(tokens, end + 1) != "over":
                return True
    return False


def _find_closing(tokens: Sequence[SqlToken], slot: int) -> int:
    depth = 0
    while slot < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[slot].text, 0)
        if depth == 0:
            return slot
        slot += 1
    return slot


def _statements(tokens: Sequence[SqlToken]) -> int:
    """Return how many statements there are; empty ones behind a semicolon do not count."""
    count, is_empty = 0, True
    for token in tokens:
        if token.text == ";" and token.kind == "sign":
            is_empty = True
        elif is_empty:
            count, is_empty = count + 1, False
    return count


def _low(tokens: Sequence[SqlToken], slot: int) -> str:
    return tokens[slot].low if 0 <= slot < len(tokens) else ""


def _text(tokens: Sequence[SqlToken], slot: int) -> str:
    return tokens[slot].text if 0 <= slot < len(tokens) else ""
