"""The guide names everything a user can type, set or scrape. The names come from the code."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from ister.base import BrokerReport, DelayReport
from ister.base.limits import Limits
from ister.cli.app import make_app
from ister.cli.console.access import ACCESS_OPTIONS
from ister.config import all_settings
from ister.server.http.metrics import SnapshotCollector
from ister.server.http.snapshot import Snapshot

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
HELP = {"--help", "-h"}


def commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """Every command with the words that call it, groups of commands included."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{words} {name}")


def options(command: Any) -> list[str]:
    """Every spelling of a command's own options."""
    found = [word for one in command.params for word in (*one.opts, *one.secondary_opts)]
    return [word for word in found if word.startswith("-") and word not in HELP]


COMMANDS = dict(commands(typer.main.get_command(make_app()), "ister"))


def row_of(words: str) -> str:
    """The guide's row for a command."""
    return next((line for line in GUIDE.splitlines() if line.startswith(f"| `{words}` |")), "")


def metric_names() -> set[str]:
    """The names as a scrape shows them."""
    values: dict[str, Any] = dict.fromkeys(BrokerReport.__annotations__, 0)
    report = BrokerReport(**values | {"broker": "b", "version": "0", "delayed": DelayReport()})
    suffixes = {"counter": "_total", "info": "_info"}
    families = SnapshotCollector(Snapshot(broker=report)).collect()
    return {family.name + suffixes.get(family.type, "") for family in families}


@pytest.mark.parametrize("words", COMMANDS)
def test_the_guide_has_the_command_and_its_options(words: str) -> None:
    command = COMMANDS[words]
    if getattr(command, "commands", None) and words != "ister":
        return  # A group: its commands have rows of their own.
    row = row_of(words)
    assert row, f"no row for `{words}`"

    # The flags of `serve` have a table of their own; every command but it takes `--url`, and what
    # belongs to it.
    everywhere = "".join(f"`{option}`" for option in ("--url", *ACCESS_OPTIONS))
    text = GUIDE if words == "ister serve" else row + everywhere
    named = {word for code in re.findall(r"`(-[^`]*)`", text) for word in code.split()[:1]}
    assert set(options(command)) <= named


def test_the_guide_has_what_every_command_takes_with_its_variable() -> None:
    taken = [one for one in COMMANDS["ister topics list"].params if one.opts[0] in ACCESS_OPTIONS]
    assert len(taken) == len(ACCESS_OPTIONS)
    for one in taken:
        assert f"\n| `{one.opts[0]} FILE` | `{one.envvar}`" in GUIDE


def test_the_guide_has_every_setting_as_the_help_has_it() -> None:
    for one in all_settings():
        if one.part == "limits":
            continue
        place = f"[{one.part}] {one.key}" if one.part else one.key
        start = f"| `{one.flag}` | `{one.variable}` | `{place}` | {one.shown or 'none'} | "
        [text] = [line.removeprefix(start) for line in GUIDE.splitlines() if line.startswith(start)]
        # The sentence of the help, with links, and maybe with more behind it.
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
        assert plain.startswith(one.why.replace("`", ""))


def test_the_guide_has_every_limit_with_its_default() -> None:
    for one in fields(Limits):
        value = one.default
        assert isinstance(value, int)
        shown = f"{value // 1024**2} MiB" if one.name.endswith("_bytes_max") else f"{value:,}"
        assert f"| `{one.name}` | {shown} |" in GUIDE


def test_the_guide_has_every_metric_and_no_other() -> None:
    named = set(re.findall(r"^\| `(ister_\w+)` \|", GUIDE, re.MULTILINE))

    assert named == metric_names()
