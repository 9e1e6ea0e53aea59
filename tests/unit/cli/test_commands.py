"""Rules of the command line that need no broker."""

import pytest
from typer.testing import CliRunner

from ister.base import DEFAULT_URL, TopicReport
from ister.base.errors import BadRequestError, ConnectionLostError
from ister.cli.app import make_app
from ister.cli.console.terminal import counted, parse_pairs
from ister.cli.messages.produce import _rounds, _send, _Sent, _splitter
from ister.cli.serve import hints
from ister.cli.topics.top import Rates, rates_between
from ister.testing import MemoryBroker, settle

COMMANDS = [
    ["serve"],
    ["produce"],
    ["consume"],
    ["read"],
    ["request"],
    ["reply"],
    ["bench"],
    ["top"],
    ["topics", "list"],
    ["topics", "create"],
    ["topics", "describe"],
    ["topics", "purge"],
    ["topics", "export"],
    ["topics", "import"],
    ["topics", "delete"],
    ["subs", "list"],
    ["subs", "describe"],
    ["subs", "seek"],
    ["subs", "update"],
    ["subs", "pause"],
    ["subs", "resume"],
    ["subs", "delete"],
    ["subs", "save-cursor"],
    ["subs", "drop-cursor"],
    ["subs", "redrive"],
    ["namespaces", "list"],
    ["namespaces", "create"],
    ["namespaces", "delete"],
    ["brokers", "list"],
    ["schemas", "register"],
    ["schemas", "get"],
    ["schemas", "list"],
    ["schemas", "check"],
    ["schemas", "delete"],
    ["schemas", "mode"],
    ["schemas", "bind"],
    ["schemas", "unbind"],
    ["schemas", "binding"],
    ["timeline", "put"],
    ["timeline", "get"],
    ["timeline", "move"],
    ["timeline", "update"],
    ["timeline", "delete"],
    ["timeline", "list"],
    ["timeline", "count"],
    ["timeline", "consume"],
    ["timeline", "cron", "put"],
    ["timeline", "cron", "get"],
    ["timeline", "cron", "list"],
    ["timeline", "cron", "pause"],
    ["timeline", "cron", "resume"],
    ["timeline", "cron", "delete"],
    ["timeline", "cron", "preview"],
    ["storage", "check"],
    ["storage", "keys"],
    ["storage", "reencrypt"],
    ["storage", "move"],
    ["storage", "backup"],
    ["storage", "restore"],
    ["keys", "create"],
    ["keys", "rotate"],
    ["keys", "list"],
    ["keys", "remove"],
    ["pipeline", "run"],
    ["pipeline", "validate"],
    ["pipeline", "new"],
    ["pipeline", "list"],
    ["pipeline", "status"],
    ["pipeline", "stop"],
]
READS = [
    ["consume"],
    ["read"],
    ["request"],
    ["bench"],
    ["top"],
    ["topics", "list"],
    ["topics", "describe"],
    ["topics", "export"],
    ["topics", "import"],
    ["subs", "list"],
    ["subs", "describe"],
    ["namespaces", "list"],
    ["brokers", "list"],
    ["schemas", "register"],
    ["schemas", "get"],
    ["schemas", "list"],
    ["schemas", "check"],
    ["schemas", "mode"],
    ["schemas", "binding"],
    ["timeline", "put"],
    ["timeline", "get"],
    ["timeline", "move"],
    ["timeline", "update"],
    ["timeline", "list"],
    ["timeline", "count"],
    ["timeline", "consume"],
    ["timeline", "cron", "put"],
    ["timeline", "cron", "get"],
    ["timeline", "cron", "list"],
    ["timeline", "cron", "pause"],
    ["timeline", "cron", "resume"],
    ["timeline", "cron", "preview"],
    ["storage", "check"],
    ["storage", "keys"],
    ["storage", "reencrypt"],
    ["storage", "move"],
    ["storage", "backup"],
    ["storage", "restore"],
    ["keys", "list"],
    ["pipeline", "validate"],
    ["pipeline", "list"],
    ["pipeline", "status"],
]
DESTROYS = [
    ["topics", "purge"],
    ["topics", "delete"],
    ["subs", "seek"],
    ["subs", "delete"],
    ["subs", "drop-cursor"],
    ["namespaces", "delete"],
    ["schemas", "delete"],
    ["timeline", "delete"],
    ["timeline", "cron", "delete"],
]


def topic(messages_in: int) -> TopicReport:
    return TopicReport(
        topic="/default/a",
        kind="live",
        partitions=0,
        producers=0,
        subscriptions=0,
        messages_in=messages_in,
        bytes_in=0,
        messages_out=0,
        messages_dropped=0,
        next_offset=messages_in,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = CliRunner().invoke(make_app(), [*command, "--help"])

    assert result.exit_code == 0
    assert f"ister {' '.join(command)}" in result.stdout.replace("root", "ister")


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_every_read_offers_json(command: list[str]) -> None:
    assert "--json" in CliRunner().invoke(make_app(), [*command, "--help"]).stdout


@pytest.mark.parametrize("command", DESTROYS, ids=" ".join)
def test_every_command_that_destroys_can_be_told_not_to_ask(command: list[str]) -> None:
    assert "--yes" in CliRunner().invoke(make_app(), [*command, "--help"]).stdout


def test_pairs_keep_everything_after_the_first_equals_sign() -> None:
    assert parse_pairs(["a=1", "b=", "c=x=y"], "--attribute") == {"a": "1", "b": "", "c": "x=y"}


@pytest.mark.parametrize("word", ["a", "=1", ""])
def test_what_is_no_pair_is_refused(word: str) -> None:
    with pytest.raises(BadRequestError):
        parse_pairs([word], "--attribute")


@pytest.mark.parametrize(("payloads", "repeat"), [(1, 1), (1, 20_000), (3, 7), (10_000, 2)])
def test_rounds_repeat_everything_in_order(payloads: int, repeat: int) -> None:
    given = [b"%d" % n for n in range(payloads)]

    assert [one for chunk in _rounds(given, repeat) for one in chunk] == given * repeat


def test_a_rate_is_what_was_added_per_second() -> None:
    rates = rates_between(topic(10), topic(30), 2.0)

    assert rates == Rates(messages_in=10.0, messages_out=0.0, messages_dropped=0.0, bytes_in=0.0)


def test_a_topic_that_is_new_counts_from_zero() -> None:
    assert rates_between(None, topic(30), 2.0).messages_in == 15.0


def test_counters_of_a_broker_started_anew_give_no_negative_rate() -> None:
    assert rates_between(topic(30), topic(0), 1.0).messages_in == 0.0


def test_no_time_between_two_looks_gives_no_rate() -> None:
    assert rates_between(topic(0), topic(30), 0.0).messages_in == 0.0


async def test_produce_does_not_count_as_sent_what_was_lost() -> None:
    async with (
        MemoryBroker() as broker,
        broker.connect() as client,
        client.producer("/default/orders") as producer,
    ):
        sent = _Sent()
        await _send(producer, [b"a"], None, {}, sent)
        broker.disconnect_all()
        await settle()

        with pytest.raises(ConnectionLostError):
            await _send(producer, [b"b"], None, {}, sent)


def test_the_hints_of_serve_reach_the_broker_that_shows_them() -> None:
    url = "isters://127.0.0.1:7000"
    commands = hints(DEFAULT_URL)

    assert [line.split()[0] for line in commands] == ["ister", "ister", "ister"]
    assert hints(url) == [f"export ISTER_URL={url}", *commands]


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 entries"), (1, "1 entry"), (1_000, "1,000 entries")]
)
def test_one_thing_is_not_counted_as_several(count: int, told: str) -> None:
    assert counted(count, "entry", "entries") == told


def test_each_message_has_its_key_before_the_separator() -> None:
    payloads, keys = _splitter(None, ":")([b"a:1", b"b:", b":2:3"])

    assert (payloads, keys) == ([b"1", b"", b"2:3"], ["a", "b", ""])


def test_a_tab_can_be_typed_as_a_separator() -> None:
    assert _splitter(None, "\\t")([b"a\t1"]) == ([b"1"], ["a"])


def test_one_key_is_that_of_every_message() -> None:
    assert _splitter("k", None)([b"1", b"2"]) == ([b"1", b"2"], ["k", "k"])
    assert _splitter(None, None)([b"1"]) == ([b"1"], None)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"no key" * 20, r"message 'no keyno.{32}' has no key: --key-separator ':' is not in it"),
        (b"\xff:1", "is not UTF-8, as keys must be"),
    ],
)
def test_a_message_without_a_good_key_is_refused(message: bytes, told: str) -> None:
    with pytest.raises(BadRequestError, match=told):
        _splitter(None, ":")([b"a:1", message])


def test_a_separator_that_is_empty_is_refused() -> None:
    with pytest.raises(BadRequestError, match="--key-separator is empty"):
        _splitter(None, "")
