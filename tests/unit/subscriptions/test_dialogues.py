"""Planning, as dialogues: text files of commands and of what they have planners do.

When behaviour changes on purpose, have the files written again and review the difference:

    ISTER_DIALOGUES=rewrite .venv/bin/python -m pytest tests/unit/subscriptions/test_dialogues.py
"""

import os
from pathlib import Path

import pytest
from tests.unit.subscriptions.dialogue import Dialogue

FOLDER = Path(__file__).parent / "dialogues"
LINE = "----"


def replayed(text: str) -> str:
    """Return a dialogue with the effects that its commands have now."""
    dialogue, told = Dialogue(), ""
    for block in text.strip().split("\n\n"):
        comments = [line for line in block.splitlines() if line.startswith("#")]
        spoken = [line for line in block.splitlines() if not line.startswith("#")]
        told += "".join(f"{line}\n" for line in comments)
        if spoken:
            effects = dialogue.say(spoken[0])
            told += "\n".join([spoken[0], LINE, *effects]) + "\n"
        told += "\n"
    return told.rstrip() + "\n"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_planning_follows_the_dialogue(file: Path) -> None:
    text = file.read_text()
    now = replayed(text)
    if os.environ.get("ISTER_DIALOGUES") == "rewrite":
        file.write_text(now)

    assert now == file.read_text()


def test_there_is_a_dialogue_for_each_strategy() -> None:
    assert {"exclusive", "shared", "key_shared"} <= {file.stem for file in FOLDER.glob("*.txt")}
