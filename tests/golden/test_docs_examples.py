"""The examples in the specifications are the golden files, and every command is described."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.golden.files import read
from tests.unit.wire.samples import (
    ACK_SETTINGS,
    BROKER_REPORT,
    COMMANDS,
    CONSUMER_REPORT,
    CURSOR_REPORT,
    SCHEMA_BINDING,
    SCHEMA_SUBJECT,
    SCHEMA_VERSION,
    STREAM_REPORT,
    STREAM_SETTINGS,
    SUBSCRIPTION_REPORT,
    TOPIC_REPORT,
)

from ister.base import LATEST, Origin
from ister.wire import Opcode

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


MAPS = [
    LATEST,
    STREAM_SETTINGS,
    ACK_SETTINGS,
    TOPIC_REPORT,
    STREAM_REPORT,
    SUBSCRIPTION_REPORT,
    CURSOR_REPORT,
    CONSUMER_REPORT,
    BROKER_REPORT,
    SCHEMA_VERSION,
    SCHEMA_SUBJECT,
    SCHEMA_BINDING,
]


@pytest.mark.parametrize("sample", MAPS, ids=[type(sample).__name__ for sample in MAPS])
def test_every_field_of_a_map_inside_a_command_is_in_the_protocol(sample: object) -> None:
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")

    for field in fields(sample):  # type: ignore[arg-type]  # each of them is a dataclass
        assert f"`{field.name}`" in text


@pytest.mark.parametrize("origin", Origin)
def test_every_origin_of_a_position_is_in_the_protocol(origin: str) -> None:
    assert f"`{origin}` (" in (DOCS / "protocol.md").read_text(encoding="utf-8")


OPCODES = {name: number for name, number in vars(Opcode).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", OPCODES)
def test_every_opcode_is_in_the_protocol(name: str) -> None:
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")

    assert f"\n| {OPCODES[name]} | {name} |" in text


def test_opcodes_are_numbered_without_holes() -> None:
    assert sorted(OPCODES.values()) == list(range(1, len(OPCODES) + 1))
