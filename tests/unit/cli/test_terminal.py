"""How the program ends: the exit code is that of the outcome, whatever becomes of stdout."""

import os
import sys
from functools import partial
from typing import NoReturn

import pytest

from ister.base.errors import TopicNotFoundError
from ister.cli.app import make_app
from ister.cli.console.terminal import EXIT_FILE, guard
from ister.testing import ThreadedBroker


def fail() -> NoReturn:
    sys.stdout.write("a row\n")
    raise TopicNotFoundError("/default/x")


def succeed() -> NoReturn:
    sys.stdout.write("a row\n")
    sys.exit(0)


def code_of(command: object) -> object:
    with pytest.raises(SystemExit) as ended:
        guard(command)  # type: ignore[arg-type]
    # What the interpreter does at exit: its code is 120 when that fails.
    sys.stdout.flush()
    return ended.value.code


def test_an_error_keeps_its_exit_code_when_the_reader_of_stdout_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)

        assert code_of(fail) == TopicNotFoundError.exit_code


def test_a_reader_of_stdout_that_has_gone_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)

        assert code_of(succeed) == 0


def test_rows_that_cannot_be_written_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as stdout:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stdout", stdout)

        assert code_of(succeed) == EXIT_FILE
    assert "No space left" in capsys.readouterr().err


def test_a_report_that_nobody_reads_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with ThreadedBroker() as broker, os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        args = ["topics", "list", "--json", "--url", broker.url]

        assert code_of(partial(make_app(["topics"]), args)) == 0
