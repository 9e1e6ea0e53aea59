"""Documents, error messages and help are in plain English: some phrases are refused.

Each phrase is one that readers had to puzzle out. The reason says what to write in its place.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ERRORS = ROOT / "src/ister/base/errors"
COMMANDS = ROOT / "src/ister/cli"

PHRASES = {
    r"see the module(?! `)": "say it here: help() shows this text alone",
    r"(?:whoever|somebody|anybody|nobody)": "name the client, the consumer, the operator …",
    r"anew": "write `again`",
    r"for ever": "write `permanently`, `without end` or `no limit`",
    # `there is no`, `is no longer` and the like are plain.
    r"(?<!there )(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|other\b)[a-z`]\w*": (
        "write `is not a`"
    ),
    r"hears? of": "write what happens: `is notified`, `receives`",
    r"(?:is|are|was|were) told": "write what happens: `returns`, `receives`, `is notified`",
    r"taken back": "write `revoked`",
    r"(?:has|have) to go": "write what happens: `is closed`, `is removed`",
    r"(?:its|their|his) own will": "write `by itself`",
    r"sees? to (?:it|that)": "write what is done",
    r"becomes? of": "write `what happens to`",
}

# Phrases left in error messages and help. The number may only fall: lower it with each rewrite.
MESSAGES_LEFT = 104


def offences(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and complaint for each refused phrase, across line breaks as well."""
    for pattern, reason in PHRASES.items():
        found = re.compile(rf"\b{pattern}\b".replace(" ", r"\s"), re.IGNORECASE)
        for one in found.finditer(text):
            phrase = " ".join(one[0].split())
            yield text.count("\n", 0, one.start()) + 1, f"`{phrase}`: {reason}"


def prose(document: str) -> str:
    """Blank the blocks of code, which may quote what a program prints."""
    return re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        document,
        flags=re.MULTILINE | re.DOTALL,
    )


def documents() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    programs = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.yaml")]
    return sorted((*pages, *programs))


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of what users read of a module: errors, and help of commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path.is_relative_to(ERRORS):
        yield from texts(tree)
        return
    is_command = path.is_relative_to(COMMANDS)
    for node in ast.walk(tree):
        is_help = isinstance(node, ast.keyword) and node.arg in {"help", "epilog"}
        if is_help or isinstance(node, ast.Raise):
            yield from texts(node)
        if is_command and isinstance(node, ast.FunctionDef):
            yield node.lineno, ast.get_docstring(node) or ""


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.lineno, inner.value


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_none_of_the_refused_phrases(path: Path) -> None:
    found = [f"{path}:{line}: {what}" for line, what in offences(prose(path.read_text("utf-8")))]

    assert not found, "\n".join(["", *found])


def test_no_refused_phrases_are_added_to_messages() -> None:
    found = {
        f"{path}:{line}: {what}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in messages(path)
        for _, what in offences(text)
    }

    assert len(found) <= MESSAGES_LEFT, "\n".join(["", *sorted(found)])


BAD = [
    "See the module.",
    "what somebody\nelse has stored",
    "bind the topic anew",
    "0: for ever",
    "`x` is no size",
    "the broker hears of it",
    "a client is told",
    "the token is taken back",
    "the connection has to go",
    "of its own will",
    "the loop sees to it",
    "what becomes of a message",
]


@pytest.mark.parametrize(("phrase", "text"), list(zip(PHRASES, BAD, strict=True)))
def test_a_refused_phrase_is_found(phrase: str, text: str) -> None:
    assert [what for _, what in offences(text) if PHRASES[phrase] in what]


@pytest.mark.parametrize(
    "text",
    ["There is no limit.", "is no longer stored", "is not a size", "see the module `errors`"],
)
def test_plain_english_passes(text: str) -> None:
    assert list(offences(text)) == []


def test_a_block_of_code_may_quote_a_program() -> None:
    assert list(offences(prose("a\n```\nx is no size\n```\nb is no size\n"))) == [
        (5, "`is no size`: write `is not a`")
    ]
