"""The parts of a SQL step that Spark keeps state for, as text that can be compared.

Read by the words of its clauses, not by a grammar. Two texts are to be equal when Spark could go on
with the same state: so layout, names of views and aliases make no difference, and a group that is
given by its number or its alias is what that stands for.
"""

import re
from collections.abc import Iterator, Sequence

from ister.spark.pipelines.sql.query import analyse

_TOKEN = re.compile(
    # What is not closed goes to the end, as in `sql`.
    r"--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)|\"[^\"]*(?:\"|\Z)|`[^`]*(?:`|\Z)|\w+|\S",
    re.DOTALL,
)
_CLAUSE_ENDS = {
    "where", "group", "having", "order", "limit", "union", "intersect", "except", "minus", "window",
    "join", "inner", "left", "right", "full", "cross", "natural", "lateral", "sort", "cluster",
    "distribute", "qualify", ";",
}  # fmt: skip
_AGGREGATES = {
    "any_value", "approx_count_distinct", "approx_percentile", "array_agg", "avg", "bit_and",
    "bit_or", "bit_xor", "bool_and", "bool_or", "collect_list", "collect_set", "corr", "count",
    "count_if", "covar_pop", "covar_samp", "every", "first", "first_value", "kurtosis", "last",
    "last_value", "listagg", "max", "max_by", "mean", "median", "min", "min_by", "mode",
    "percentile", "percentile_approx", "regr_slope", "skewness", "some", "std", "stddev",
    "stddev_pop", "stddev_samp", "string_agg", "sum", "try_avg", "try_sum", "var_pop", "var_samp",
    "variance",
}  # fmt: skip

# Behind the name of a view these begin something else; any other word is its alias.
_NO_ALIAS = _CLAUSE_ENDS | {
    "on", "using", "semi", "anti", "outer", "as", "tablesample", "pivot", "unpivot", "when", "then",
}  # fmt: skip


def stateful_parts(sql: str, *, joins_streams: bool) -> list[str]:
    """Return the parts of a query that Spark keeps state for, in their order."""
    views = {found.name.lower() for found in analyse(sql).views}
    tokens = _without_names(_tokens(sql), views)
    parts: list[str] = []
    for slot, token in enumerate(tokens):
        following = tokens[slot + 1] if slot + 1 < len(tokens) else ""
        if token == "group" and following == "by":
            parts.append(f"group by {' , '.join(_groups(tokens, slot))}")
        elif token == "select" and following == "distinct":
            parts.append(f"select distinct {' '.join(_clause(tokens, slot + 2, {'from'}))}")
        elif token == "join" and joins_streams:
            kind = _join_kind(tokens, slot)
            parts.append(f"{kind}join {' '.join(_clause(tokens, slot + 1))}")
        elif token in _AGGREGATES and following == "(":
            end = _end_of_aggregate(tokens, slot)
            is_window_function = tokens[end + 1 : end + 2] == ["over"]
            if not is_window_function:
                parts.append(" ".join(tokens[slot : end + 1]))
    return list(dict.fromkeys(parts))


def _tokens(sql: str) -> list[str]:
    found = (text for text in _TOKEN.findall(sql) if not text.startswith(("--", "/*")))
    return [text if text[0] in "'\"`" else text.lower() for text in found]


def _without_names(tokens: Sequence[str], views: set[str]) -> list[str]:
    """Return a query with views by their place, `view1`, instead of their names and aliases."""
    marks: dict[str, str] = {}
    found: list[str] = []
    slot = 0
    while slot < len(tokens):
        name = _plain(tokens[slot])
        is_view = name in views and tokens[slot + 1 : slot + 2] not in (["("], ["."])
        if not (is_view and found and found[-1] in ("from", "join")):
            found.append(tokens[slot])
            slot += 1
            continue
        mark = f"view{len(marks) + 1}"
        found.append(mark)
        slot += 1
        behind = slot + (tokens[slot : slot + 1] == ["as"])
        alias = tokens[behind] if behind < len(tokens) else ""
        if re.match(r"\w|`", alias) and alias not in _NO_ALIAS:
            name, slot = _plain(alias), behind + 1
        marks[name] = mark
    return list(_qualify(found, marks))


def _qualify(tokens: Sequence[str], marks: dict[str, str]) -> Iterator[str]:
    """Yield tokens with the marks of views before their columns; none where there is one view."""
    for slot, token in enumerate(tokens):
        is_prefix = tokens[slot + 1 : slot + 2] == ["."] and _plain(token) in marks
        is_point = token == "." and slot > 0 and _plain(tokens[slot - 1]) in marks
        if len(marks) == 1 and (is_prefix or is_point):
            continue
        yield marks[_plain(token)] if is_prefix else token


def _plain(token: str) -> str:
    return token.strip("`").lower()


def _groups(tokens: Sequence[str], slot: int) -> list[str]:
    """Return what the GROUP BY at `slot` groups by: numbers and aliases as what they stand for."""
    groups = [" ".join(one) for one in _items(_clause(tokens, slot + 2))]
    chosen = _chosen(tokens, slot)
    if groups == ["all"]:
        return [text for text, _ in chosen if not _AGGREGATES & set(text.split(" "))]
    aliases = {alias: text for text, alias in chosen if alias}
    found = []
    for group in groups:
        if group.isdecimal() and 0 < int(group) <= len(chosen):
            found.append(chosen[int(group) - 1][0])
        elif group in aliases and group not in aliases[group].split(" "):
            found.append(aliases[group])
        else:
            # Also of an alias that stands for itself, as in `upper(region) AS region`: a column of
            # the view goes before it.
            found.append(group)
    return found


def _chosen(tokens: Sequence[str], slot: int) -> list[tuple[str, str]]:
    """Return the columns of the SELECT that a GROUP BY belongs to, each with its alias."""
    depth = 0
    while slot > 0:
        slot -= 1
        depth += {")": 1, "(": -1}.get(tokens[slot], 0)
        if depth < 0:
            return []
        if depth == 0 and tokens[slot] == "select":
            break
    found = []
    for item in _items(_clause(tokens, slot + 1, {"from", "where", "group"})):
        if len(item) > 2 and item[-2] == "as":
            found.append((" ".join(item[:-2]), item[-1]))
        elif len(item) > 1 and item[-2] != "." and re.fullmatch(r"\w+|`.*`", item[-1]):
            found.append((" ".join(item[:-1]), item[-1]))
        else:
            found.append((" ".join(item), ""))
    return found


def _items(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Yield the parts between commas."""
    depth = 0
    item: list[str] = []
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0 and token == ",":
            yield item
            item = []
        else:
            item.append(token)
    yield item


def _end_of_aggregate(tokens: Sequence[str], slot: int) -> int:
    """Return where `sum(x) FILTER (WHERE y)` ends."""
    end = _find_closing(tokens, slot + 1)
    if tokens[end + 1 : end + 3] == ["filter", "("]:
        return _find_closing(tokens, end + 2)
    return end


def _clause(tokens: Sequence[str], slot: int, ends: set[str] = _CLAUSE_ENDS) -> Sequence[str]:
    """Return the words up to the next clause, or up to the parenthesis that ends this query."""
    depth, start = 0, slot
    while slot < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[slot], 0)
        # `left(name, 3)` is a function.
        is_call = tokens[slot + 1 : slot + 2] == ["("] and tokens[slot] in {"left", "right"}
        if depth < 0 or (depth == 0 and tokens[slot] in ends and not is_call):
            break
        slot += 1
    return tokens[start:slot]


def _join_kind(tokens: Sequence[str], slot: int) -> str:
    words: list[str] = []
    while slot > 0 and tokens[slot - 1] in {"left", "right", "full", "semi", "anti", "cross"}:
        slot -= 1
        words.insert(0, tokens[slot])
    return "".join(f"{word} " for word in words)


def _find_closing(tokens: Sequence[str], slot: int) -> int:
    depth = 0
    while slot < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[slot], 0)
        if depth == 0:
            break
        slot += 1
    return slot
