"""`ister timeline cron` as processes, against a real broker."""

import json
import re
from collections.abc import Iterator

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.shell import Shell

pytestmark = pytest.mark.e2e

NIGHTLY = ("30 2 * * *", "report", "--id", "nightly", "--tz", "Europe/Vienna")


@pytest.fixture
def shell(shared_broker: BrokerProcess) -> Iterator[Shell]:
    """The command line, with the shared broker as its default."""
    shell = Shell(shared_broker.url)
    yield shell
    shell.close()


@pytest.fixture
def topic(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A cron topic that no other test uses."""
    name = "/default/" + re.sub(r"[^\w-]+", "-", request.node.name)[:200]
    shell.run("topics", "create", name, "--kind", "cron")
    return name


def cron(shell: Shell, *args: str) -> dict[str, object]:
    found = shell.json("timeline", "cron", *args)
    assert isinstance(found, dict)
    return found


def test_a_rule_is_made_seen_paused_resumed_replaced_and_deleted(shell: Shell, topic: str) -> None:
    made = cron(shell, "put", topic, *NIGHTLY, "--jitter", "30s", "--attribute", "k=v")
    seen = cron(shell, "get", topic, "nightly")
    assert (seen["cron"], seen["tz"], seen["jitter_s"]) == ("30 2 * * *", "Europe/Vienna", 30.0)
    assert (seen["version"], seen["attributes"]) == (made["version"], {"k": "v"})
    assert str(seen["next"])[10:16] == "T02:30"
    assert str(seen["next_utc"])[-6:] == "+00:00"

    paused = cron(shell, "pause", topic, "nightly")
    assert cron(shell, "get", topic, "nightly")["next"] is None
    cron(shell, "resume", topic, "nightly", "--version", str(paused["version"]))
    cron(shell, "put", topic, "@daily", "new", "--id", "nightly", "--replace")
    [listed] = shell.run("timeline", "cron", "list", topic, "--json").stdout.splitlines()
    assert (json.loads(listed)["cron"], json.loads(listed)["payload"]) == ("@daily", "new")
    shell.run("timeline", "cron", "delete", topic, "nightly", "--yes")

    shell.run("timeline", "cron", "get", topic, "nightly", code=66)


def test_tables_show_times_in_the_zone_of_the_rule_and_in_utc(shell: Shell, topic: str) -> None:
    shell.run("timeline", "cron", "put", topic, *NIGHTLY)

    for command in (("cron", "list", topic), ("cron", "get", topic, "nightly")):
        table = shell.run("timeline", *command).stdout.decode()
        assert "T02:30:00+0" in table
        assert "+00:00" in table
    assert "T02:30:00+0" in shell.run("timeline", "get", topic, "nightly").stdout.decode()


def test_what_is_refused_ends_with_the_code_of_its_error(shell: Shell, topic: str) -> None:
    put = ("timeline", "cron", "put", topic)
    shell.run(*put, *NIGHTLY)

    assert b"nightly" in shell.run(*put, *NIGHTLY, code=73).stderr
    assert b"minute '61'" in shell.run(*put, "61 * * * *", "x", code=64).stderr
    assert b"Mars/Base" in shell.run(*put, "@daily", "x", "--tz", "Mars/Base", code=64).stderr
    assert b"jitter" in shell.run(*put, "@daily", "x", "--jitter", "7d", code=64).stderr
    assert b"overlap" in shell.run(*put, "@daily", "x", "--overlap", "often", code=64).stderr
    shell.run("timeline", "cron", "pause", topic, "nightly", "--group", "other", code=73)
    shell.run(*put, "@daily", "x", "--version", "3", code=2)
    missing = shell.run("timeline", "cron", "list", "/default/none", code=66).stderr
    assert b"--kind cron" in missing
    plain = shell.run("timeline", "put", topic, "x", code=64).stderr
    assert b"cron=" in plain


def test_a_preview_works_without_a_broker_and_for_a_rule(shell: Shell, topic: str) -> None:
    alone = Shell("ister://127.0.0.1:1")
    try:
        shown = alone.run(
            "timeline", "cron", "preview", "0 9 * * 1-5", "--tz", "Europe/Vienna", "-n", "5"
        ).stdout.decode()
    finally:
        alone.close()
    shell.run("timeline", "cron", "put", topic, *NIGHTLY)
    told = shell.run("timeline", "cron", "preview", topic, "nightly", "--json").stdout

    assert shown.count("T09:00:00+0") == 5
    times = [json.loads(line) for line in told.splitlines()]
    assert [str(one["time"])[10:16] for one in times] == ["T02:30"] * 5
    shell.run("timeline", "cron", "preview", topic, code=2)
