"""Files to start a pipeline from: one folder for each template, with sample data.

The files are in `templates/<name>` beside this module. In their text `{{name}}` is the name of the
new pipeline.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ister.base.errors import BadRequestError
from ister.spark.pipelines.config import FileLine, Notes, check_name, nearest

# What each template shows, in the order of learning.
TEMPLATES = {
    "window": "totals per minute and region, with late data",
    "enrich": "orders with the country of their region, from a file; routed to several topics",
    "join": "orders with their payments, two streams",
    "session": "visits: clicks of one user with no pause longer than ten minutes",
    "state": "a rule that remembers: several large payments of one card within a minute",
    "table": "readings of sensors, one row a minute, as a Parquet table",
    "python": "a pipeline in Python instead of YAML",
}

# What the package manager leaves beside the files of a package.
_NOT_OURS = {"__pycache__"}


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to write, by its path in the new folder."""

    path: str
    text: str


def new_files(name: str, template: str = "window") -> list[NewFile]:
    """Return the files of a new pipeline, or raise `BadRequestError`. Writes nothing."""
    notes = Notes(file="", folder="", chosen={}, environment={})
    check_name(name, "a pipeline", FileLine(""), notes)
    if notes.remarks:
        raise BadRequestError(notes.remarks[0].text)
    if template not in TEMPLATES:
        raise BadRequestError(f"there is no template `{template}`{nearest(template, [*TEMPLATES])}")
    folder = files("ister.spark.pipelines") / "templates" / template
    found = []
    for one in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if one.name not in _NOT_OURS:
            text = one.read_text(encoding="utf-8").replace("{{name}}", name)
            found.append(NewFile(one.name.removesuffix(".txt"), text))
    return found


def write_files(folder: Path, found: list[NewFile]) -> None:
    """Write new files into a new or empty folder, or raise `BadRequestError`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadRequestError(f"{folder} exists and is not empty: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    for one in found:
        (folder / one.path).write_text(one.text, encoding="utf-8")
