"""Tables on stdout: quick ones look as those that `rich` makes."""

import pytest

from ister.cli.console import terminal
from ister.cli.console.terminal import write_table

COLUMNS = ("NAME", "COUNT", "NOTE")
ROWS = [("a", 1, "short"), ("a longer name", 1_234_567, ""), ("b", 0, True)]


@pytest.mark.parametrize("rows", [[], ROWS, ROWS[:1]])
def test_a_table_looks_the_same_however_it_is_made(
    rows: list[tuple[object, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_table(COLUMNS, rows)
    quick = capsys.readouterr().out
    monkeypatch.setattr(terminal, "_plain_lines", lambda *_, **__: None)
    write_table(COLUMNS, rows)

    assert quick == capsys.readouterr().out


@pytest.mark.parametrize(
    ("cell", "width"), [("x" * 30, 20), ("two\nlines", 99), ("\x1b[31m", 99), ("漢", 99)]
)
def test_what_must_be_cut_or_made_harmless_is_left_to_rich(cell: str, width: int) -> None:
    assert terminal._plain_lines([("NAME",), (cell,)], [False], width=width) is None


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("\x1b[31mred\nX", r"\x1b[31mred\nX"),
        ("\u200b\u202e", r"\u200b\u202e"),
        ("größe 漢", "größe 漢"),
        ("a\\n", "a\\n"),
    ],
)
def test_a_cell_moves_no_terminal(
    cell: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(("NAME", "COUNT"), [(cell, 1)])

    _, line = capsys.readouterr().out.splitlines()
    assert line.split("  ")[0] == shown
