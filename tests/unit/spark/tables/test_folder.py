"""Where a table is."""

from pathlib import Path

import pytest

from ister.base.errors import BadRequestError
from ister.spark.tables.folder import local_path


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ("/lake/orders", "/lake/orders"),
        ("file:///lake/orders", "/lake/orders"),
        ("file:/lake/orders", "/lake/orders"),
        (Path("/lake/orders"), "/lake/orders"),
        ("/lake/a:/b", "/lake/a:/b"),
    ],
)
def test_a_folder_is_found_however_it_is_written(table: str | Path, path: str) -> None:
    assert local_path(table) == Path(path)


@pytest.mark.parametrize("table", ["s3a://lake/orders", Path("s3a://lake/orders"), "dbfs:/lake"])
def test_an_object_store_is_refused_instead_of_a_folder_of_its_name(table: str | Path) -> None:
    with pytest.raises(BadRequestError, match="is not in a folder"):
        local_path(table)
