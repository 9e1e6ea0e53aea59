"""The Python and the commands of docs/timelines.md run as pasted, from top to bottom."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_snippets import WAIT_S, python_blocks, run_blocks

from ister.testing import ThreadedBroker

PAGE = (Path(__file__).parents[2] / "docs" / "timelines.md").read_text(encoding="utf-8")


def run_script(url: str, script: str) -> str:
    """Run lines of a shell, up to the first that fails, and return what they printed."""
    here = f'set -e\nister() {{ "{sys.executable}" -m ister "$@"; }}\n'
    result = subprocess.run(
        ["bash", "-c", here + script],
        env={**os.environ, "ISTER_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_python_runs_from_top_to_bottom() -> None:
    blocks = python_blocks(PAGE)
    assert len(blocks) >= 8
    with ThreadedBroker() as broker:
        asyncio.run(run_blocks(broker.url, blocks))


def test_the_first_commands_print_what_is_shown() -> None:
    [dialogue] = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^\$ (.*)$", dialogue, re.MULTILINE)
    with ThreadedBroker() as broker:
        printed = run_script(broker.url, "\n".join(commands)).splitlines()

    shown = [line for line in dialogue.splitlines() if not line.startswith("$ ")]
    # Ids are made anew each time.
    assert [len(line) for line in printed] == [len(line) for line in shown]
    assert printed[-1] == shown[-1]


def test_the_commands_run_from_top_to_bottom() -> None:
    [script] = re.findall(r"^```\n(ister .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with ThreadedBroker() as broker:
        printed = run_script(broker.url, script)

    assert '"payload":"now"' in printed
