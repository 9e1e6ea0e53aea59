"""The Python of the README and of the guide's chapters on streams and schemas runs as pasted."""

import ast
import asyncio
import builtins
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ister
from ister.testing import ThreadedBroker

ROOT = Path(__file__).parents[2]
URL = "ister://127.0.0.1:6655"
WAIT_S = 30.0


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def chapter(name: str) -> str:
    """A chapter of the guide, up to the next one."""
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    return re.split(r"^## ", guide.split(f"\n## {name}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_program_of_the_readme_runs_as_it_stands() -> None:
    [program] = python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert URL in program
    with ThreadedBroker() as broker:
        result = subprocess.run(
            [sys.executable, "-c", program.replace(URL, broker.url)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    assert result.returncode == 0, result.stderr
    assert result.stdout == "0 customer-1 b'one'\n"


async def run_blocks(url: str, blocks: list[str]) -> None:
    """Run blocks one after the other in one scope, with a connected `client`."""
    scope: dict[str, Any] = {"ister": ister, "print": lambda *_: None}
    async with ister.connect(url) as client:
        scope["client"] = client
        for block in blocks:
            code = builtins.compile(block, "guide.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, scope)  # noqa: S307 - our own guide
            if inspect.iscoroutine(running):
                await asyncio.wait_for(running, WAIT_S)


def test_the_chapter_on_streams_runs_from_top_to_bottom() -> None:
    blocks = python_blocks(chapter("Streams"))
    assert len(blocks) >= 7
    with ThreadedBroker() as broker:
        asyncio.run(run_blocks(broker.url, blocks))


def test_the_chapter_on_schemas_runs_from_top_to_bottom() -> None:
    blocks = python_blocks(chapter("Schemas"))
    assert len(blocks) >= 3
    with ThreadedBroker() as broker:
        asyncio.run(run_blocks(broker.url, blocks))


def test_the_example_with_schemas_runs_and_shows_both_versions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = runpy.run_path(str(ROOT / "examples" / "schemas.py"))
    with ThreadedBroker() as broker:
        asyncio.run(program["main"](broker.url))

    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == [
        "what would break: nothing",
        "(1, 1) Order(id=1, item='salmon', quantity=1)",
        "(1, 2) Order(id=2, item='trout', quantity=3)",
    ]
    assert shown[3].startswith("refused: messages of '/default/examples.orders'")


def test_a_block_that_does_not_run_is_caught() -> None:
    with ThreadedBroker() as broker, pytest.raises(AttributeError):
        asyncio.run(run_blocks(broker.url, ["await client.no_such_call()\n"]))
