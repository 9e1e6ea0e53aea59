"""Each command of `ister` as a process, against a real broker."""

import base64
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.shell import WAIT_S, Shell, command, finish

import ister.sync

pytestmark = pytest.mark.e2e


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return "/default/" + re.sub(r"[^\w-]+", "-", request.node.name)[:200]


@pytest.fixture
def live_topic(shared_broker: BrokerProcess, topic: str) -> None:
    """Create the topic of this test as a live topic: `consume` creates none."""
    with ister.sync.connect(shared_broker.url) as client:
        client.create_topic(topic)


@pytest.fixture
def shell(shared_broker: BrokerProcess) -> Iterator[Shell]:
    """The command line, with the shared broker as its default."""
    shell = Shell(shared_broker.url)
    yield shell
    shell.close()


# produce and consume


@pytest.mark.usefixtures("live_topic")
def test_consume_prints_the_payloads_that_produce_sends(shell: Shell, topic: str) -> None:
    consumer = shell.start("consume", topic, "--count", "3")
    result = shell.run("produce", topic, "one", "two", "", "--key", "k")

    assert finish(consumer)[0] == b"one\ntwo\n\n"
    assert result.stdout == b""
    assert b"sent 3 messages" in result.stderr


@pytest.mark.usefixtures("live_topic")
def test_produce_sends_each_line_of_stdin_as_it_is(shell: Shell, topic: str) -> None:
    consumer = shell.start("consume", topic, "--count", "3")
    shell.run("produce", topic, input=b"a b\n\xff\x00\nlast")

    assert finish(consumer)[0] == b"a b\n\xff\x00\nlast\n"


@pytest.mark.usefixtures("live_topic")
def test_a_dash_means_stdin(shell: Shell, topic: str) -> None:
    consumer = shell.start("consume", topic, "--count", "1")
    shell.run("produce", topic, "-", input=b"line\n")

    assert finish(consumer)[0] == b"line\n"


@pytest.mark.usefixtures("live_topic")
def test_produce_sends_a_file_as_often_as_told(shell: Shell, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"1\n2\n")
    consumer = shell.start("consume", topic, "--count", "6")
    shell.run("produce", topic, "--file", str(file), "--count", "3")

    assert finish(consumer)[0] == b"1\n2\n" * 3


@pytest.mark.usefixtures("live_topic")
def test_many_messages_arrive_in_order(shell: Shell, topic: str) -> None:
    lines = b"".join(b"%d\n" % n for n in range(50_000))
    consumer = shell.start("consume", topic, "--count", "50000")
    shell.run("produce", topic, input=lines)

    assert finish(consumer)[0] == lines


@pytest.mark.usefixtures("live_topic")
def test_json_lines_hold_everything_about_a_message(shell: Shell, topic: str) -> None:
    consumer = shell.start("consume", topic, "--count", "1", "--json")
    shell.run(
        "produce", topic, "grüße", "--key", "k", "--attribute", "a=1", "--attribute", "b=x=y",
        "--name", "shop",
    )  # fmt: skip

    row = json.loads(finish(consumer)[0])
    assert row.pop("publish_time").endswith("+00:00")
    assert row == {
        "topic": topic,
        "partition": None,
        "offset": 0,
        "key": "k",
        "attributes": {"a": "1", "b": "x=y"},
        "id": None,
        "producer": "shop",
        "attempt": 1,
        "payload": "grüße",
    }


def test_verbose_lines_have_topic_offset_and_key(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic, "--kind", "stream")
    shell.run("produce", topic, "first", "--key", "k")
    shell.run("produce", topic, "second")
    printed = f"{topic}\t0\tk\tfirst\n{topic}\t1\t-\tsecond\n".encode()

    assert shell.run("read", topic, "--verbose").stdout == printed
    consumed = shell.run("consume", topic, "-v", "--start", "earliest", "--count", "2")
    assert consumed.stdout == printed


@pytest.mark.usefixtures("live_topic")
def test_a_payload_that_is_no_text_is_base64_in_json(shell: Shell, topic: str) -> None:
    consumer = shell.start("consume", topic, "--count", "1", "--json")
    shell.run("produce", topic, input=b"\xff\xfe\n")

    row = json.loads(finish(consumer)[0])
    assert "payload" not in row
    assert base64.b64decode(row["payload_base64"]) == b"\xff\xfe"


@pytest.mark.usefixtures("live_topic")
def test_filters_choose_by_attribute_and_by_key(shell: Shell, topic: str) -> None:
    by_attribute = shell.start("consume", topic, "--count", "1", "--filter", "region=eu-*")
    by_key = shell.start("consume", topic, "--count", "1", "--key-filter", "b*")
    shell.run("produce", topic, "first", "--key", "a1", "--attribute", "region=us-1")
    shell.run("produce", topic, "second", "--key", "b1", "--attribute", "region=us-1")
    shell.run("produce", topic, "third", "--key", "c1", "--attribute", "region=eu-1")

    assert finish(by_attribute)[0] == b"third\n"
    assert finish(by_key)[0] == b"second\n"


@pytest.mark.usefixtures("live_topic")
def test_consumers_of_a_shared_subscription_share(shell: Shell, topic: str) -> None:
    options = ("--subscription", "workers", "--type", "shared", "--policy", "round_robin")
    consumers = [shell.start("consume", topic, *options, "--count", "2") for _ in range(2)]
    shell.run("produce", topic, "1", "2", "3", "4")

    lines = b"".join(finish(consumer)[0] for consumer in consumers).split()
    assert sorted(lines) == [b"1", b"2", b"3", b"4"]


@pytest.mark.usefixtures("live_topic")
def test_a_taken_exclusive_subscription_is_a_clear_error(shell: Shell, topic: str) -> None:
    shell.start("consume", topic, "--subscription", "s")
    result = shell.run("consume", topic, "--subscription", "s", code=73)

    assert b"is taken by consumer" in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_consume_creates_no_topic_and_says_what_does(shell: Shell, topic: str) -> None:
    result = shell.run("consume", topic, code=66)

    assert f"ister topics create {topic}".encode() in result.stderr
    assert shell.json("topics", "list", topic) == []


@pytest.mark.usefixtures("live_topic")
def test_consume_ends_when_nothing_comes_for_the_timeout(shell: Shell, topic: str) -> None:
    assert shell.run("consume", topic, "--timeout", "0.05").stdout == b""
    result = shell.run("consume", topic, "--timeout", "0.05", "--count", "2", code=75)

    assert b"0 of 2 messages came" in result.stderr


@pytest.mark.usefixtures("live_topic")
def test_a_reader_that_leaves_ends_consume_quietly(shell: Shell, topic: str) -> None:
    consumer = shell.start("consume", topic)
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    shell.run("produce", topic, "first")
    assert consumer.stdout.readline() == b"first\n"
    consumer.stdout.close()
    shell.run("produce", topic, "second")

    assert consumer.wait(WAIT_S) == 0
    assert consumer.stderr.read() == b""


@pytest.mark.usefixtures("live_topic")
@pytest.mark.parametrize(("options", "code"), [((), 0), (("--count", "5"), 130)])
def test_interrupting_consume_is_no_error_when_it_has_no_other_end(
    options: tuple[str, ...], code: int, shell: Shell, topic: str
) -> None:
    consumer = shell.start("consume", topic, *options)
    consumer.send_signal(signal.SIGINT)

    assert finish(consumer, code=code)[1] == b""


def test_a_terminated_consumer_takes_its_unnamed_subscription_along(
    shell: Shell, topic: str
) -> None:
    shell.run("topics", "create", topic, "--kind", "stream")
    consumer = shell.start("consume", topic)
    assert len(json.loads(shell.run("subs", "list", topic, "--json").stdout)) == 1
    consumer.send_signal(signal.SIGTERM)

    assert finish(consumer, code=143)[1] == b""
    assert shell.json("subs", "list", topic) == []


@pytest.mark.usefixtures("live_topic")
def test_settings_of_a_subscription_are_updated(shell: Shell) -> None:
    topic = "/default/updated"
    shell.run("topics", "create", topic, "--kind", "stream")
    shell.run("consume", topic, "-s", "s", "--expire-after", "7d", "--timeout", "0")
    shell.run("subs", "update", topic, "s", "--ack-timeout", "1m", "--policy", "random")
    shell.run("subs", "update", topic, "s", code=2)
    text = shell.run("subs", "list", topic, "--json").stdout

    for setting in (b'"expire_after_ms":604800000', b'"ack_timeout_ms":60000', b'"random"'):
        assert setting in text


@pytest.mark.usefixtures("live_topic")
def test_interrupting_produce_does_not_wait_for_its_stdin(shell: Shell, topic: str) -> None:
    consumer = shell.start("consume", topic, "--count", "1")
    producer = subprocess.Popen(
        command("produce", topic),
        env=shell.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert producer.stdin is not None
    producer.stdin.write(b"first\n")
    producer.stdin.flush()
    assert finish(consumer)[0] == b"first\n"
    producer.send_signal(signal.SIGINT)

    assert producer.wait(WAIT_S) == 130
    assert producer.stderr is not None
    assert producer.stderr.read() == b""
    producer.stdin.close()
    producer.stderr.close()


def test_produce_tells_when_nobody_listens(shell: Shell, topic: str) -> None:
    assert b"nobody is subscribed" in shell.run("produce", topic, "x").stderr
    assert shell.run("produce", topic, "x", "--quiet").stderr == b""


def test_produce_reports_as_json(shell: Shell, topic: str) -> None:
    report = shell.json("produce", topic, "abc", "--count", "10")

    assert isinstance(report, dict)
    assert (report["messages"], report["bytes"]) == (10, 30)


def test_each_line_has_its_own_key(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic, "--kind", "stream")
    shell.run("produce", topic, "--key-separator", ":", input=b"a:1\nb:2\n")
    shell.run("produce", topic, "c:3", "--key-separator", ":", "--attribute", "x=y")

    printed = shell.run("read", topic, "--verbose").stdout.decode().splitlines()
    assert [line.split("\t")[2:] for line in printed] == [["a", "1"], ["b", "2"], ["c", "3"]]
    shell.run("produce", topic, "d:4", "--key-separator", ":", "--key", "k", code=2)


# request and reply


@pytest.mark.parametrize(
    ("responder", "answer"),
    [
        (("pong",), b"pong\n"),
        (("--echo",), b"hello\n"),
        (("--command", "tr a-z A-Z"), b"HELLO\n"),
        (("--command", "printf $ISTER_TOPIC"), b"{topic}\n"),
        (("--command", "echo no input read"), b"no input read\n\n"),
    ],
)
def test_a_request_gets_the_answer_of_reply(
    responder: tuple[str, ...], answer: bytes, shell: Shell, topic: str
) -> None:
    process = shell.start("reply", topic, *responder, "--count", "1")

    assert shell.run("request", topic, "hello").stdout == answer.replace(b"{topic}", topic.encode())
    finish(process)


def test_a_question_may_come_from_stdin(shell: Shell, topic: str) -> None:
    shell.start("reply", topic, "--echo")

    assert shell.run("request", topic, input=b"a\nb").stdout == b"a\nb\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--command", "cat; exit 3"), b"exit code 3"),
        (("--command", "sleep 1000 & wait", "--command-timeout", "0.1"), b"no answer within 0.1 s"),
        (("--command", "no-such-command-here"), b"exit code 127"),
    ],
)
def test_a_command_that_fails_is_told_to_the_asker(
    options: tuple[str, ...], reason: bytes, shell: Shell, topic: str
) -> None:
    shell.start("reply", topic, *options)
    result = shell.run("request", topic, "x", code=1)

    assert result.stdout == b""
    assert reason in result.stderr


def test_a_request_that_nobody_answers_fails_at_once(shell: Shell, topic: str) -> None:
    assert b"nobody answers" in shell.run("request", topic, "x", code=66).stderr


@pytest.mark.usefixtures("live_topic")
def test_a_request_without_an_answer_in_time_fails(shell: Shell, topic: str) -> None:
    shell.start("consume", topic)

    assert (
        b"took longer than 0.1 s"
        in shell.run("request", topic, "x", "--timeout", "0.1", code=75).stderr
    )


def test_interrupting_reply_is_no_error(shell: Shell, topic: str) -> None:
    process = shell.start("reply", topic, "--command", "sleep 1000")
    asker = subprocess.Popen(
        command("request", topic, "x"),
        env=shell.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    process.send_signal(signal.SIGINT)

    finish(process)
    asker.kill()
    asker.wait()


# topics, subs, namespaces


def test_topics_are_created_listed_described_and_deleted(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic, "--partitions", "2")
    rows = shell.json("topics", "list", topic)
    assert isinstance(rows, list)
    assert [row["topic"] for row in rows] == [f"{topic}-part-0", f"{topic}-part-1"]
    assert topic.encode() in shell.run("topics", "list").stdout

    shell.start("consume", topic, "--subscription", "s")
    described = shell.json("topics", "describe", topic)
    assert isinstance(described, dict)
    assert [one["subscription"] for one in described["subscriptions"]] == ["s"]

    shell.run("topics", "delete", topic, "--yes")
    shell.run("topics", "describe", topic, code=66)


def test_the_list_tells_how_many_messages_there_are(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", f"{topic}-live")
    shell.run("topics", "create", f"{topic}-stream", "--kind", "stream")
    shell.run("topics", "create", f"{topic}-timeline", "--kind", "timeline")
    shell.run("produce", f"{topic}-stream", "1", "2", "3")
    shell.run("timeline", "put", f"{topic}-timeline", "later", "--in", "1h")

    head, *rows = shell.run("topics", "list").stdout.decode().splitlines()
    assert head.split()[:3] == ["TOPIC", "KIND", "MESSAGES"]
    cells = {words[0]: words[1:] for words in map(str.split, rows) if words[0].startswith(topic)}
    assert cells[f"{topic}-live"][:2] == ["live", "-"]
    assert cells[f"{topic}-stream"][:2] == ["stream", "3"]
    assert cells[f"{topic}-timeline"] == ["timeline", "1", "-", "-", "-", "0", "-", "-", "-"]


def test_a_shell_completes_names_of_topics(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", f"{topic}-a", "--partitions", "2")
    shell.run("topics", "create", f"{topic}-b")
    line = f"ister topics describe {topic}"
    typed = {"_ISTER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}

    completing = Shell(shell.environment["ISTER_URL"], **typed)
    assert completing.run().stdout.decode().split() == [f"{topic}-a", f"{topic}-b"]
    nowhere = Shell("ister://127.0.0.1:1", **typed)
    assert nowhere.run().stdout.strip() == b""


def test_deleting_says_what_it_does_and_needs_a_yes(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic)
    result = shell.run("topics", "delete", topic, code=2)

    assert f"deletes topic {topic}".encode() in result.stderr
    assert b"--yes" in result.stderr
    shell.run("topics", "describe", topic)


def test_creating_a_topic_twice_with_other_settings_is_a_conflict(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic)
    shell.run("topics", "create", topic)

    assert (
        b"exists already"
        in shell.run("topics", "create", topic, "--partitions", "2", code=73).stderr
    )


@pytest.mark.usefixtures("live_topic")
def test_subscriptions_are_listed_and_described(shell: Shell, topic: str) -> None:
    shell.start("consume", topic, "--subscription", "s", "--consumer", "c", "--filter", "a=b*")

    rows = shell.json("subs", "list", topic)
    assert isinstance(rows, list)
    assert [(row["topic"], row["subscription"]) for row in rows] == [(topic, "s")]
    described = shell.json("subs", "describe", topic, "s")
    assert isinstance(described, dict)
    assert described["filters"] == {"a": "b*"}
    assert [one["name"] for one in described["consumers"]] == ["c"]
    text = shell.run("subs", "describe", topic, "s").stdout.decode()
    assert re.search(r"(?m)^filters +a=b\*$", text)
    assert re.search(r"(?m)^durable +no: it ends with its last consumer$", text)
    assert topic.encode() in shell.run("subs", "list").stdout
    shell.run("subs", "describe", topic, "other", code=66)


def test_namespaces_are_created_and_listed(shell: Shell) -> None:
    shell.run("namespaces", "create", "team-a")

    assert b"team-a\n" in shell.run("namespaces", "list").stdout
    names = shell.json("namespaces", "list")
    assert isinstance(names, list)
    assert {"default", "team-a"} <= set(names)
    shell.run("namespaces", "create", "team-a", code=73)
    shell.run("produce", "/team-a/x", "1")
    shell.run("produce", "/team-b/x", "1", code=66)


# bench, top, and the rest


def test_bench_measures_and_leaves_no_topic_behind(shell: Shell) -> None:
    report = shell.json("bench", "--messages", "2000", "--round-trips", "20")

    assert isinstance(report, dict)
    assert [one["received"] for one in report["throughput"]] == [2000, 2000]
    assert all(one["count"] == 20 for one in report["latency"])
    assert b"/default/bench-" not in shell.run("topics", "list").stdout


def test_bench_prints_a_table(shell: Shell) -> None:
    out = shell.run("bench", "--messages", "100", "--round-trips", "2").stdout

    assert b"THROUGHPUT" in out
    assert b"P99" in out


@pytest.mark.usefixtures("live_topic")
def test_top_shows_topics_and_consumers_once(shell: Shell, topic: str) -> None:
    shell.start("consume", topic, "--consumer", "watched")
    shell.run("produce", topic, "x")

    out = shell.run("top", "--once", "--interval", "0.1").stdout.decode()
    assert topic in out
    assert "watched" in out
    view = shell.json("top", topic, "--once", "--interval", "0.1")
    assert isinstance(view, dict)
    assert [one["report"]["topic"] for one in view["topics"]] == [topic]
    assert view["topics"][0]["report"]["messages_in"] == 1


def test_top_shows_lag_and_what_is_due(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic, "--kind", "stream")
    shell.run("topics", "create", f"{topic}-due", "--kind", "timeline")
    shell.run("produce", topic, "1", "2", "3")
    shell.run("timeline", "put", f"{topic}-due", "now", "--in", "0s")
    options = ("--start", "earliest", "--count", "1", "--quiet")
    shell.run("consume", topic, "--subscription", "behind", *options)

    lines = shell.run("top", "--once", "--interval", "0.1").stdout.decode().splitlines()
    rows = [line.split() for line in lines]
    assert [row[:4] for row in rows if row[:1] == ["behind"]] == [["behind", topic, "2", "0"]]
    [due] = [row for row in rows if row[:1] == [f"{topic}-due"]]
    assert due[1:] == ["timeline", "-", "0", "-", "-", "-", "1", "-", "-"]


def test_top_streams_until_its_reader_leaves(shell: Shell) -> None:
    process = subprocess.Popen(
        command("top", "--json", "--interval", "0.1"),
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    shell.running.append(process)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["broker"]["version"]
    assert json.loads(process.stdout.readline())["rates"]["messages_in"] >= 0
    process.stdout.close()

    assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("closed", "args", "code"),
    [
        ("<&-", ("produce", "/default/closed"), 0),
        (">&-", ("topics", "list"), 0),
        ("2>&-", ("produce", "/default/closed", "x"), 0),
        ("2>&-", ("produce", "bad/name", "x"), 64),
        (">/dev/full", ("topics", "list", "--json"), 74),
    ],
)
def test_closed_or_full_standard_streams_do_no_harm(
    closed: str, args: tuple[str, ...], code: int, shell: Shell
) -> None:
    script = f"exec {shlex.join(command(*args))} {closed}"
    result = subprocess.run(
        ["sh", "-c", script],
        env=shell.environment,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )

    assert result.returncode == code, result.stderr.decode()
    assert b"bug" not in result.stderr


Args = tuple[str, ...]

BAD_COMMANDS: list[tuple[Args, int, bytes]] = [
    (("produce", "one/slash", "x"), 64, b"'one/slash' is not valid"),
    (("consume", "/default/a.>.b", "--timeout", "0"), 64, b"'>' stands only at the end"),
    (("topics", "list", "bad/name"), 64, b"'bad/name' is not valid"),
    (("topics", "create", "/nowhere/a"), 66, b"namespace 'nowhere' does not exist"),
    (("topics", "create", "/default/a", "--kind", "disk"), 64, b"'disk' is not available"),
    (("consume", "/default/a", "--type", "odd"), 64, b"--type 'odd'"),
    (("consume", "/default/a", "--filter", "x"), 64, b"--filter 'x' is not name=value"),
    (("produce", "/default/a", "--file", "/no/such/file"), 74, b"No such file"),
    (("topics", "import", "/no/such/file"), 74, b"/no/such/file: No such file"),
    (("schemas", "register", "a", "/no/such.json"), 74, b"/no/such.json: No such file"),
    (("keys", "create", "/no/such/file"), 74, b"there is no folder /no/such"),
    (("produce", "/default/a", "--file", "/"), 74, b"Is a directory"),
    (("produce", "/default/a", "x", "--file", "/dev/null"), 2, b"not both"),
    (("produce", "/default/a", "x", "--compression", "zip"), 64, b"--compression 'zip'"),
    (("reply", "/default/a"), 2, b"give one of"),
    (("reply", "/default/a", "x", "--echo"), 2, b"give one of"),
    (("topics", "list", "--url", "http://x"), 64, b"is not 'ister://host:port'"),
    (("topics", "list", "--url", "ister://127.0.0.1:1"), 75, b"no broker at ister://127.0.0.1:1"),
    (("no-such-command",), 2, b"No such command"),
]


@pytest.mark.parametrize(
    ("args", "code", "words"), BAD_COMMANDS, ids=[" ".join(args) for args, _, _ in BAD_COMMANDS]
)
def test_a_mistake_is_one_clear_error(args: Args, code: int, words: bytes, shell: Shell) -> None:
    result = shell.run(*args, code=code)

    assert result.stdout == b""
    assert words in result.stderr


def test_a_message_over_the_limit_is_refused(shell: Shell, topic: str) -> None:
    result = shell.run("produce", topic, input=b"x" * (8 * 1024 * 1024 + 1), code=64)

    assert b"exceeds the 8MiB limit" in result.stderr


def test_the_version_is_told(shell: Shell) -> None:
    assert shell.run("--version").stdout.startswith(b"ister ")


def test_the_demo_runs_and_ends_cleanly() -> None:
    demo = Path(__file__).parents[2] / "examples" / "demo.py"
    result = subprocess.run(
        # The pipeline is tests/e2e/spark/test_demo.py.
        [sys.executable, str(demo), "--seconds", "1", "--pipeline-seconds", "0"],
        env=plain_environment(),
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )

    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr == b""
    assert b"two subscriptions received" in result.stdout
