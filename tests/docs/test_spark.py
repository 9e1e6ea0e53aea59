"""Every option and column of the data source is in docs/spark.md, and nothing else."""

import re
from pathlib import Path

from ister.spark.options import READ_NAMES, STORE_PREFIX
from ister.spark.source.layouts import COLUMNS, ERROR_COLUMN

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


def first_cells(title: str) -> list[str]:
    """The names in the first column of the table of a chapter."""
    chapter = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", chapter, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_option_of_a_read_is_documented() -> None:
    assert sorted(first_cells("Options")) == sorted((*READ_NAMES, f"{STORE_PREFIX}*"))


def test_every_column_is_documented_in_its_order() -> None:
    assert first_cells("Columns") == [*COLUMNS.fieldNames(), ERROR_COLUMN]
