"""What is said about pipelines with mistakes, word for word.

People read these lines with a file open beside them: the line must be right, one mistake must not
hide another, and none may be told that is not there. After a change of words run

    .venv/bin/python -m tests.golden.test_pipeline_messages

and review the difference.
"""

from pathlib import Path

import pytest

from ister.spark.pipelines.loading import read_file

FOLDER = Path(__file__).parent / "pipelines"
NAMES = sorted(path.name for path in FOLDER.glob("*.[yt]*ml"))


def said(name: str) -> str:
    """Return what is said about a file, as seen from its folder."""
    remarks = read_file(FOLDER / name, environment={}).remarks
    text = "".join(f"{one}\n" for one in remarks)
    return text.replace(f"{FOLDER}/", "").replace(str(FOLDER), "FOLDER")


@pytest.mark.parametrize("name", NAMES)
def test_every_mistake_is_told_with_its_line(name: str) -> None:
    assert said(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for one in NAMES:
        (FOLDER / f"{one}.txt").write_text(said(one), encoding="utf-8")
