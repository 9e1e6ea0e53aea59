"""The examples in the specifications are the golden files, and every command is described."""

import re
from pathlib import Path

import pytest
from tests.golden.files import read
from tests.unit.wire.samples import COMMANDS

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = ["batch-format.md", "protocol.md"]

# Position, bytes, then what they mean.
LINE = re.compile(r"([0-9a-f]{3})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2,}.*)?")


def examples(page: str) -> list[tuple[str, list[tuple[int, bytes]]]]:
    """Return each example of a page: the golden file it names, and its lines."""
    text = (DOCS / page).read_text(encoding="utf-8")
    names = re.findall(r"\(golden file `([\w-]+)`\)", text)
    blocks = [b for b in re.findall(r"```\n(.*?)```", text, re.DOTALL) if LINE.match(b)]
    parsed = [[LINE.fullmatch(line) for line in block.splitlines()] for block in blocks]
    lines = [[(int(m[1], 16), bytes.fromhex(m[2])) for m in block if m] for block in parsed]
    assert all(all(block) for block in parsed), "a line of an example cannot be read"
    return list(zip(names, lines, strict=True))


EXAMPLES = [example for page in PAGES for example in examples(page)]


@pytest.mark.parametrize(("name", "lines"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_has_the_bytes_of_its_golden_file(
    name: str, lines: list[tuple[int, bytes]]
) -> None:
    assert b"".join(data for _, data in lines) == read(name)


@pytest.mark.parametrize(("name", "lines"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_lines_of_an_example_stand_at_their_positions(
    name: str, lines: list[tuple[int, bytes]]
) -> None:
    expected = 0
    for position, data in lines:
        assert position == expected
        expected += len(data)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_its_fields_are_in_the_protocol(name: str) -> None:
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")

    for word in (name, *COMMANDS[name].__struct_fields__):
        assert f"`{word}`" in text
