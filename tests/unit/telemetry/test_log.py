"""The structured log: level, format, and what never gets into it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from ister.telemetry import configure_log


@pytest.fixture(autouse=True)
def restored_log() -> Iterator[None]:
    """Leave the logs of the test run as they were."""
    handlers = logging.getLogger().handlers
    yield
    logging.getLogger().handlers = handlers
    structlog.reset_defaults()


def written(level: str, format: str = "json") -> io.StringIO:
    stream = io.StringIO()
    configure_log(level=level, format=format, stream=stream)
    return stream


def events(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_a_line_with_its_fields() -> None:
    stream = written("info")
    structlog.get_logger("native").info("client_connected", address="a:1")

    (event,) = events(stream)
    assert event.pop("timestamp")
    assert event == {
        "event": "client_connected",
        "level": "info",
        "logger": "native",
        "address": "a:1",
    }


@pytest.mark.parametrize(
    ("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_what_is_below_the_level_is_not_written(level: str, count: int) -> None:
    stream = written(level)
    logger = structlog.get_logger()
    for say in (logger.debug, logger.info, logger.warning, logger.error):
        say("event")

    assert len(events(stream)) == count


@pytest.mark.parametrize("format", ["json", "console"])
def test_no_control_character_is_written(format: str) -> None:
    stream = written("info", format)
    name = "".join(map(chr, [*range(32), *range(127, 160)])) + "\u202e\u2028"
    structlog.get_logger("native").info("event", client=name)

    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    if format == "json":
        assert json.loads(line)["client"] == name


def test_without_a_terminal_auto_means_json() -> None:
    stream = written("info", "auto")
    structlog.get_logger().info("event")

    assert events(stream)[0]["event"] == "event"


def test_the_console_format_is_for_people() -> None:
    stream = written("info", "console")
    structlog.get_logger("native").info("client_connected", address="a:1")

    assert "client_connected" in stream.getvalue()
    assert "address=a:1" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_traceback_never_shows_the_values_of_variables(format: str) -> None:
    stream = written("info", format)
    payload = b"-".join([b"a", b"secret"])
    try:
        assert payload == b""
    except AssertionError:
        structlog.get_logger().error("internal_error", exc_info=ValueError("broken"))

    assert "ValueError" in stream.getvalue()
    assert "a-secret" not in stream.getvalue()


def test_other_libraries_are_heard_from_warning_on() -> None:
    stream = written("debug")
    other = logging.getLogger("some.library")
    other.info("chatter")
    other.warning("trouble with %s", "it")

    (event,) = events(stream)
    assert (event["event"], event["logger"]) == ("trouble with it", "some.library")


def test_a_log_that_cannot_be_written_to_stops_nothing() -> None:
    stream = written("info")
    stream.close()

    structlog.get_logger().info("event")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("variable", "has_colors"), [("", True), ("1", False)])
def test_no_color_keeps_a_terminal_without_colors(
    variable: str, has_colors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", variable)
    stream = Terminal()
    configure_log(level="info", format="auto", stream=stream)
    structlog.get_logger("native").info("client_connected")

    assert ("\x1b[" in stream.getvalue()) == has_colors
