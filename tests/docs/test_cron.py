"""The Python and the commands of docs/cron.md run as pasted, from top to bottom."""

import asyncio
import re
from pathlib import Path

from tests.docs.test_snippets import python_blocks, run_blocks
from tests.docs.test_timelines import run_script

from ister.base.limits import CRON_PAYLOAD_BYTES_MAX, CRON_RULES_MAX
from ister.testing import ThreadedBroker
from ister.timeline import PREVIEW_COUNT_MAX

PAGE = (Path(__file__).parents[2] / "docs" / "cron.md").read_text(encoding="utf-8")


def test_the_python_runs_from_top_to_bottom() -> None:
    blocks = python_blocks(PAGE)
    assert len(blocks) >= 2
    with ThreadedBroker() as broker:
        asyncio.run(run_blocks(broker.url, blocks))


def test_the_first_commands_print_what_is_shown() -> None:
    [dialogue] = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^\$ (.*)$", dialogue, re.MULTILINE)
    with ThreadedBroker() as broker:
        printed = run_script(broker.url, "\n".join(commands)).splitlines()

    assert printed == [line for line in dialogue.splitlines() if not line.startswith("$ ")]


def test_the_commands_run_from_top_to_bottom() -> None:
    [script] = re.findall(r"^```\n(ister .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with ThreadedBroker() as broker:
        printed = run_script(broker.url, script)

    assert '"cron":"0 3 * * *"' in printed


def test_the_limits_are_those_of_the_broker() -> None:
    assert f"| rules of a topic | {CRON_RULES_MAX:,} |" in PAGE
    assert f"{CRON_PAYLOAD_BYTES_MAX // 1024} KiB" in PAGE
    assert f"| preview | {PREVIEW_COUNT_MAX:,} times |" in PAGE
