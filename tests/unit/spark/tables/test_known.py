"""The notes of which tables there are."""

from pathlib import Path

from ister.spark.tables.known import (
    TABLES_MAX,
    KnownTable,
    known_tables,
    notes_path,
    remember,
    tables_of,
    with_table,
)


def test_notes_are_in_the_state_folder_of_the_user() -> None:
    assert notes_path({"XDG_STATE_HOME": "/s"}) == Path("/s/ister/tables.json")
    assert notes_path({}) == Path.home() / ".local/state/ister/tables.json"


def test_a_table_is_noted_once_with_all_its_topics_the_newest_last() -> None:
    tables = with_table((), "/t", ["/default/a"])
    tables = with_table(tables, "/u", ["/default/a"])
    tables = with_table(tables, "/t", ["/default/b", "/default/a"])

    assert tables == (
        KnownTable("/u", ("/default/a",)),
        KnownTable("/t", ("/default/a", "/default/b")),
    )


def test_the_oldest_notes_make_room() -> None:
    tables = tuple(KnownTable(f"/{n}", ()) for n in range(TABLES_MAX))

    assert with_table(tables, "/new", []) == (*tables[1:], KnownTable("/new", ()))


def test_the_tables_of_a_topic_are_found_again(tmp_path: Path) -> None:
    notes = tmp_path / "ister" / "tables.json"
    remember(Path("/lake/a"), ["/default/a"], notes=notes)
    remember(Path("/lake/b"), ["/default/b", "/default/a"], notes=notes)

    assert tables_of("/default/a", notes=notes) == [Path("/lake/a"), Path("/lake/b")]
    assert tables_of("/default/b", notes=notes) == [Path("/lake/b")]
    assert tables_of("/default/c", notes=notes) == []


def test_broken_notes_are_none_and_are_replaced(tmp_path: Path) -> None:
    notes = tmp_path / "tables.json"
    notes.write_bytes(b"{")

    assert known_tables(notes=notes) == ()
    remember(Path("/lake/a"), ["/default/a"], notes=notes)
    assert tables_of("/default/a", notes=notes) == [Path("/lake/a")]


def test_notes_that_cannot_be_written_stop_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    remember(Path("/lake/a"), ["/default/a"], notes=tmp_path / "file" / "tables.json")

    assert not (tmp_path / "file").is_dir()
