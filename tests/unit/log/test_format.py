"""The bytes on the disk are those of the specification: files of today are read by any version."""

import re
from pathlib import Path

from ister.log.files.entry import FileHeader, Kind
from ister.log.files.envelope import Envelope
from ister.log.files.extents import Extents
from ister.log.files.header import header_entry
from ister.log.journal.group import lay_out
from ister.log.journal.journal import footer_entries

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "journal-format.md"
MARK = 0x1234ABCD
LINE = re.compile(r"([0-9a-f]{3})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2,}.*)?")


def example() -> list[tuple[int, bytes]]:
    """Return the lines of the example: position and bytes."""
    [block] = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [LINE.fullmatch(line) for line in block.splitlines()]
    assert all(found), "a line of the example cannot be read"
    return [(int(m[1], 16), bytes.fromhex(m[2])) for m in found if m]


def test_a_sealed_file_has_the_bytes_of_the_example() -> None:
    header = FileHeader(role="journal", number=7, first_entry=42, created_ms=1_700_000_000_000)
    head = b"".join(header_entry(header, MARK))
    layout = lay_out(
        [(Kind.CHANGES, 0, [b"hello"], 5, 0, 0, 0, 0, ())],
        Envelope(7),
        position=len(head),
        number=42,
        synced=len(head),
        mark=MARK,
        extent_bytes=1_024,
    )
    tail = footer_entries(
        Extents(1_024),
        Envelope(7),
        position=layout.end,
        number=layout.entry_end,
        synced=len(head),
        mark=MARK,
    )

    lines = example()
    assert head + b"".join(layout.parts) + b"".join(tail) == b"".join(data for _, data in lines)


def test_the_lines_of_the_example_stand_at_their_positions() -> None:
    expected = 0
    for position, data in example():
        assert position == expected
        expected += len(data)
