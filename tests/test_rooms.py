"""Folders and names: what a stranger has to keep in mind at once has a limit.

The ceilings are what is left to be done. They may be lowered and never raised.
"""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "ister"

MODULES_MAX = 15
# Public class names that mean two things. The asyncio and the blocking client have the same names
# on purpose, and so have an operation and its command on the wire.
TWINS = ({"client/aio", "client/sync"}, {"operations", "wire"})
HOMONYMS_LEFT = 60


def crowded_folders(root: Path) -> list[str]:
    """Return the folders with more modules than a reader can keep in mind."""
    counts = {
        folder: len([p for p in folder.glob("*.py") if p.name != "__init__.py"])
        for folder in (root, *(p for p in root.rglob("*") if p.is_dir()))
    }
    return [
        f"{folder.relative_to(root)}: {count} modules, the limit is {MODULES_MAX}: find the seam"
        for folder, count in counts.items()
        if count > MODULES_MAX
    ]


def homonyms(root: Path) -> dict[str, set[str]]:
    """Return the public class names that are defined in several places, twins apart."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path.relative_to(root).as_posix())
    return {name: found for name, found in places.items() if len(found) > 1 and not _twins(found)}


def _twins(places: set[str]) -> bool:
    return len(places) == 2 and any(
        all(any(place.startswith(f"{side}/") for place in places) for side in pair)
        for pair in TWINS
    )


def test_a_folder_has_at_most_fifteen_modules() -> None:
    assert crowded_folders(SOURCE) == []


def test_no_more_class_names_mean_two_things() -> None:
    found = homonyms(SOURCE)

    assert len(found) <= HOMONYMS_LEFT, "\n".join(
        f"{name}: {', '.join(sorted(places))}" for name, places in sorted(found.items())
    )


def test_every_class_says_what_it_is() -> None:
    offences = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "See the module." in path.read_text(encoding="utf-8")
    ]

    assert offences == [], "`help()` shows a class without its module: say what it is"


def test_the_rules_catch_what_they_are_for(tmp_path: Path) -> None:
    for number in range(MODULES_MAX + 1):
        (tmp_path / f"m{number}.py").write_text("")
    (tmp_path / "wire").mkdir()
    (tmp_path / "wire" / "a.py").write_text("class Stage: ...\nclass Create: ...\n")
    (tmp_path / "operations").mkdir()
    (tmp_path / "operations" / "a.py").write_text("class Create: ...\n")
    (tmp_path / "m0.py").write_text("class Stage: ...\n")

    assert len(crowded_folders(tmp_path)) == 1
    assert list(homonyms(tmp_path)) == ["Stage"]
