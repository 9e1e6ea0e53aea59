"""`ister timeline` as processes, against a real broker."""

import json
import re
import signal
import subprocess
from array import array
from collections.abc import Iterator
from fcntl import ioctl
from functools import partial
from termios import FIONREAD

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.nursery import IsterProcess
from tests.e2e.raw import wait_until
from tests.e2e.shell import WAIT_S, Shell, finish

from ister import sync

pytestmark = pytest.mark.e2e

PIPE_BYTES = 60_000  # what a pipe holds at least before it makes its writer wait


@pytest.fixture
def shell(shared_broker: BrokerProcess) -> Iterator[Shell]:
    """The command line, with the shared broker as its default."""
    shell = Shell(shared_broker.url)
    yield shell
    shell.close()


@pytest.fixture
def topic(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A timeline that no other test uses."""
    name = "/default/" + re.sub(r"[^\w-]+", "-", request.node.name)[:200]
    shell.run("topics", "create", name, "--kind", "timeline", "--max-lease", "10m")
    return name


def put(shell: Shell, topic: str, *args: str) -> dict[str, object]:
    made = shell.json("timeline", "put", topic, *args)
    assert isinstance(made, dict)
    return made


def unread_bytes(pipe: int) -> int:
    count = array("i", [0])
    ioctl(pipe, FIONREAD, count)
    return count[0]


def lines(output: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_message_is_made_seen_moved_updated_and_deleted(shell: Shell, topic: str) -> None:
    made = put(shell, topic, "one", "--at", "2999-01-01T10:00Z", "--id", "a", "--attribute", "k=v")
    seen = shell.json("timeline", "get", topic, "a")
    assert isinstance(seen, dict)
    assert (seen["payload"], seen["attributes"], seen["state"]) == ("one", {"k": "v"}, "waiting")
    assert (seen["due"], seen["version"]) == ("2999-01-01T10:00:00.000+00:00", made["version"])

    version = str(made["version"])
    shell.run(
        "timeline", "move", topic, "a", "--at", "2999-01-02T10:00+01:00", "--version", version
    )
    shell.run("timeline", "update", topic, "a", "-", input=b"two")
    seen = shell.json("timeline", "get", topic, "a")
    assert isinstance(seen, dict)
    assert (seen["payload"], seen["attributes"]) == ("two", {})
    assert seen["due"] == "2999-01-02T09:00:00.000+00:00"

    shell.run("timeline", "delete", topic, "a", "--version", str(seen["version"]), "--yes")
    assert b"no message" in shell.run("timeline", "get", topic, "a", code=66).stderr


def test_put_prints_the_id_it_has_made(shell: Shell, topic: str) -> None:
    name = shell.run("timeline", "put", topic, "one", "--in", "1h").stdout.decode().strip()

    table = shell.run("timeline", "get", topic, name).stdout
    assert name.encode() in table
    assert table.endswith(b"\none\n")


def test_an_id_of_others_moves_no_terminal(shell: Shell, topic: str) -> None:
    name = "\x1b[31mred\nX"
    put(shell, topic, "one", "--in", "1h", "--id", name, "--attribute", "k\x1b=v\nw")

    listed = shell.run("timeline", "list", topic)
    got = shell.run("timeline", "get", topic, name)
    seen = shell.json("timeline", "get", topic, name)
    moved = shell.run("timeline", "move", topic, name, "--in", "2h")
    deleted = shell.run("timeline", "delete", topic, name, "--yes")

    assert isinstance(seen, dict)
    assert (seen["id"], seen["attributes"]) == (name, {"k\x1b": "v\nw"})
    for told in (listed.stdout, got.stdout, moved.stderr, deleted.stderr):
        assert rb"\x1b[31mred\nX" in told
        assert b"\x1b" not in told
    assert rb"k\x1b" in got.stdout


def test_list_and_count_take_a_range_of_time(shell: Shell, topic: str) -> None:
    for name, span in (("late", "3h"), ("soon", "1h"), ("later", "5h")):
        put(shell, topic, name, "--in", span, "--id", name)

    listed = lines(shell.run("timeline", "list", topic, "--json").stdout)
    assert [row["id"] for row in listed] == ["soon", "late", "later"]
    some = lines(
        shell.run("timeline", "list", topic, "--from", "2h", "--to", "4h", "--json").stdout
    )
    assert [row["id"] for row in some] == ["late"]
    assert shell.run("timeline", "count", topic, "--to", "4h").stdout == b"2\n"
    assert shell.json("timeline", "count", topic) == {"topic": topic, "count": 3}


def test_a_list_says_when_there_is_more_than_was_asked_for(shell: Shell, topic: str) -> None:
    for name in "ab":
        put(shell, topic, name, "--in", "1h", "--id", name)

    part = shell.run("timeline", "list", topic, "--limit", "1")
    assert b"there are more" in part.stderr
    assert len(part.stdout.splitlines()) == 2
    assert b"more" not in shell.run("timeline", "list", topic, "--limit", "2").stderr


def test_consume_prints_what_is_due_and_finishes_it(shell: Shell, topic: str) -> None:
    consumer = shell.start(
        "timeline", "consume", topic, "--consumer", "w", "--count", "2", "--json"
    )
    put(shell, topic, "second", "--in", "1s", "--attribute", "k=v")
    put(shell, topic, "first")

    first, second = lines(finish(consumer)[0])
    assert (first["payload"], first["attempt"]) == ("first", 1)
    assert (second["payload"], second["attributes"]) == ("second", {"k": "v"})
    assert all(float(str(row["lateness_ms"])) >= 0.0 for row in (first, second))
    assert shell.json("timeline", "count", topic) == {"topic": topic, "count": 0}


def test_the_lowest_level_of_a_priority_topic_comes_first(shell: Shell) -> None:
    topic = "/default/jobs"
    shell.run("topics", "create", topic, "--kind", "priority")
    for level in ("9", "0", "4"):
        put(shell, topic, level, "--priority", level)

    printed = shell.run("timeline", "consume", topic, "--count", "3").stdout
    assert printed == b"0\n4\n9\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_ctrl_c_gives_back_what_was_not_printed(shell: Shell, topic: str, unbuffered: str) -> None:
    shell.environment["PYTHONUNBUFFERED"] = unbuffered
    names = {f"m-{number}" for number in range(200)}
    with sync.connect(shell.environment["ISTER_URL"]) as client:
        # So large that a pipe nobody reads has room for a part of one.
        puts = [(name.encode().ljust(100_000), None, name) for name in names]
        client.timeline(topic).put_many(puts)
    consumer = shell.start("timeline", "consume", topic, "--lease", "10m")
    assert consumer.stdout is not None
    first = consumer.stdout.readline()
    unread = partial(unread_bytes, consumer.stdout.fileno())
    wait_until(lambda: unread() >= PIPE_BYTES, "the command to wait in the midst of a message")
    consumer.send_signal(signal.SIGINT)
    out, err = finish(consumer)
    assert err == b""

    printed = {line.decode().strip() for line in (first + out).splitlines()}
    left = lines(shell.run("timeline", "list", topic, "--json").stdout)
    assert {row["id"] for row in left} == names - printed
    assert {(row["state"], row["attempts"]) for row in left} == {("available", 0)}


def test_a_message_that_cannot_be_printed_goes_to_the_next_at_once(
    shell: Shell, topic: str
) -> None:
    for name in "ab":
        put(shell, topic, name, "--id", name)
    with IsterProcess(
        ["timeline", "consume", topic, "--lease", "10m", "--quiet"],
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as broken:
        assert broken.stdout is not None
        broken.stdout.close()
        assert broken.wait(WAIT_S) == 0

    printed = shell.run("timeline", "consume", topic, "--count", "2", "--timeout", "20").stdout
    assert sorted(printed.split()) == [b"a", b"b"]


def test_too_few_messages_are_told(shell: Shell, topic: str) -> None:
    told = shell.run("timeline", "consume", topic, "--count", "1", "--timeout", "0.2", code=75)

    assert b"0 of 1 messages came" in told.stderr


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["put", "{topic}", "x", "--at", "soon"], 64, b"--at 'soon' is no time"),
        (["put", "{topic}", "x", "--at", "60"], 64, b"or give a delay with --in"),
        (["put", "{topic}", "x", "--in", "1700000000"], 64, b"give the unit, as in 20000d"),
        (["put", "{topic}", "x", "--in", "soon"], 64, b"--in 'soon' is no time span"),
        (["put", "{topic}", "x", "--in", "1s", "--at", "2999-01-01"], 2, b"one of them"),
        (["put", "{topic}", "x", "--in", "9999999d"], 64, b"year 9999"),
        (["move", "{topic}", "a"], 2, b"--at or --in"),
        (["move", "{topic}", "none", "--in", "1s"], 66, b"no message"),
        (["move", "{topic}", "a", "--in", "2h", "--group", "b"], 73, b"belongs to group"),
        (["delete", "{topic}", "a", "--version", "999999", "--yes"], 73, b"was changed"),
        (["list", "{topic}", "--from", "soon"], 64, b"--from 'soon' is no time"),
        (["consume", "{topic}", "--lease", "2h"], 64, b"a lease is"),
        (["count", "/default/none"], 66, b"--kind timeline"),
        (["count", "/default/live"], 64, b"is a live topic"),
    ],
    ids=lambda value: "-".join(value[:1]) if isinstance(value, list) else None,
)
def test_a_mistake_is_told_with_its_way_out(
    shell: Shell, topic: str, words: list[str], code: int, error: bytes
) -> None:
    shell.run("topics", "create", "/default/live")
    put(shell, topic, "x", "--in", "1h", "--id", "a")

    told = shell.run("timeline", *(word.format(topic=topic) for word in words), code=code)
    assert error in told.stderr


def test_a_timeline_is_described_and_deleted_with_its_messages(shell: Shell, topic: str) -> None:
    put(shell, topic, "x", "--in", "1h")

    described = shell.run("topics", "describe", topic).stdout
    assert b"MAX LEASE" in described
    assert f"{topic}-dlq".encode() in described
    assert b"with all its messages" in shell.run("topics", "delete", topic, "--yes").stderr
    shell.run("timeline", "count", topic, code=66)
