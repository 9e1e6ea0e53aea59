"""Streams, storage and keys from the shell: commands as processes, against real brokers."""

import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.objects.conftest import S3Server, s3_server
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.shell import WAIT_S, Shell, command, finish

from ister import sync

pytestmark = pytest.mark.e2e

__all__ = ["s3_server"]  # A fixture: pytest finds it here by its name.

TOPIC = "/default/orders"
SUB = (TOPIC, "billing")


@pytest.fixture
def shell(shared_broker: BrokerProcess) -> Iterator[Shell]:
    """The command line with a broker that has no topics yet."""
    shell = Shell(shared_broker.url)
    yield shell
    shell.close()
    with sync.connect(shared_broker.url) as client:
        for report in client.topics():
            client.delete_topic(report.topic)


@pytest.fixture
def stream(shell: Shell) -> Shell:
    """A shell whose broker has a stream with the payloads 0 to 9."""
    fill(shell)
    return shell


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker that the test may end."""
    return start_broker("--segment-size", "1MiB")


@pytest.fixture
def own_stream(broker: BrokerProcess) -> Iterator[Shell]:
    """As `stream`, with that broker."""
    shell = Shell(broker.url)
    fill(shell)
    yield shell
    shell.close()


def fill(shell: Shell) -> None:
    with sync.connect(shell.environment["ISTER_URL"]) as client:
        client.create_topic(TOPIC, kind="stream")
        with client.producer(TOPIC) as producer:
            producer.send_batch([b"%d" % n for n in range(10)])


def lines(*numbers: int) -> bytes:
    return b"".join(b"%d\n" % n for n in numbers)


def described(shell: Shell) -> dict[str, object]:
    row = shell.json("subs", "describe", *SUB)
    assert isinstance(row, dict)
    cursor = row["cursor"]
    assert isinstance(cursor, dict)
    return cursor


# Streams


def test_a_stream_is_made_with_its_settings_and_described(shell: Shell) -> None:
    options = ["--durability", "os", "--retention", "limits", "--max-age", "7d"]
    options += ["--max-bytes", "10GiB", "--max-messages", "1000", "--ttl", "1h"]
    shell.run("topics", "create", TOPIC, "--kind", "stream", *options, "--dedup-window", "5m")
    found = shell.json("topics", "describe", TOPIC)

    assert isinstance(found, dict)
    [row] = found["topics"]
    assert row["kind"] == "stream"
    assert row["stream"]["settings"] == {
        "durability": "os",
        "retention": "limits",
        "max_age_ms": 7 * 86_400_000,
        "max_bytes": 10 * 1024**3,
        "max_messages": 1_000,
        "ttl_ms": 3_600_000,
        "dedup_window_ms": 300_000,
    }
    table = shell.run("topics", "describe", TOPIC).stdout
    assert b"10.0 GiB" in table
    assert b"7.0d" in table


def test_a_list_of_topics_shows_what_streams_store(stream: Shell) -> None:
    header, row = stream.run("topics", "list").stdout.decode().splitlines()

    assert header.split()[-1] == "STORED"
    assert row.split()[1] == "stream"
    assert row.split()[-1] in ("B", "KiB")


def test_produce_does_not_warn_that_nobody_listens_to_a_stream(stream: Shell) -> None:
    assert b"nobody" not in stream.run("produce", TOPIC, "x").stderr


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ((), range(10)),
        (("--start", "7"), (7, 8, 9)),
        (("--start", "2", "--end", "4"), (2, 3)),
        (("--start", "latest"), ()),
        (("--start", "1h", "--count", "3"), (0, 1, 2)),
        (("--end", "1h"), ()),
    ],
)
def test_read_prints_a_range(
    options: tuple[str, ...], numbers: tuple[int, ...], stream: Shell
) -> None:
    assert stream.run("read", TOPIC, *options).stdout == lines(*numbers)


def test_read_prints_json(stream: Shell) -> None:
    out = stream.run("read", TOPIC, "--start", "3", "--end", "5", "--json").stdout

    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["offset"], row["payload"]) for row in rows] == [(3, "3"), (4, "4")]


def test_read_follows_what_is_published(stream: Shell) -> None:
    reading = stream.start("read", TOPIC, "--start", "9", "--follow", "--count", "2")
    stream.run("produce", TOPIC, "10")

    assert finish(reading)[0] == lines(9, 10)


def test_a_live_topic_cannot_be_read(shell: Shell) -> None:
    shell.run("topics", "create", "/default/live")

    assert b"is a live topic" in shell.run("read", "/default/live", code=64).stderr


def test_a_named_subscription_goes_on_where_it_was(
    own_stream: Shell, broker: BrokerProcess
) -> None:
    consume = ("consume", TOPIC, "--subscription", "billing", "--start", "earliest")
    first = own_stream.run(*consume, "--count", "3").stdout
    looked = own_stream.run(*consume, "--count", "3", "--no-ack").stdout
    broker.restart()
    rest = own_stream.run(*consume, "--count", "7", "--json").stdout.splitlines()

    assert first == lines(0, 1, 2)
    assert looked == lines(3, 4, 5)
    rows = [json.loads(row) for row in rest]
    assert "".join(row["payload"] + "\n" for row in rows).encode() == lines(*range(3, 10))
    assert {row["attempt"] for row in rows} == {1}
    assert described(own_stream)["lag"] == 0


def test_a_subscription_without_a_name_is_gone_afterwards(stream: Shell) -> None:
    out = stream.run("consume", TOPIC, "--start", "8", "--count", "1").stdout

    assert out == lines(8)
    assert stream.json("subs", "list") == []


def test_a_subscription_is_moved_saved_paused_and_deleted(stream: Shell) -> None:
    stream.run("consume", TOPIC, "-s", "billing", "--start", "earliest", "--count", "4")
    stream.run("subs", "save-cursor", *SUB, "four")
    assert b"10 messages not" not in stream.run("subs", "seek", *SUB, "earliest", "--yes").stderr
    assert described(stream)["lag"] == 10
    stream.run("subs", "seek", *SUB, "9", "--yes")
    assert described(stream)["lag"] == 1
    stream.run("subs", "seek", *SUB, "1h", "--yes")
    assert described(stream)["lag"] == 10

    stream.run("subs", "seek", *SUB, "--saved", "four", "--yes")
    cursor = described(stream)
    assert (cursor["lag"], cursor["snapshots"]) == (6, ["four"])
    stream.run("subs", "drop-cursor", *SUB, "four", "--yes")
    stream.run("subs", "seek", *SUB, "--saved", "four", "--yes", code=66)

    stream.run("subs", "pause", *SUB)
    assert described(stream)["paused"] is True
    assert b"paused" in stream.run("subs", "list").stdout
    assert stream.run("consume", TOPIC, "-s", "billing", "--timeout", "0.3").stdout == b""
    stream.run("subs", "resume", *SUB)
    assert stream.run("consume", TOPIC, "-s", "billing", "--count", "1").stdout == lines(4)

    stream.run("subs", "delete", *SUB, "--yes")
    stream.run("subs", "describe", *SUB, code=66)


def test_a_subscription_is_described_for_people(stream: Shell) -> None:
    stream.run("consume", TOPIC, "-s", "billing", "--start", "earliest", "--count", "4")
    text = stream.run("subs", "describe", *SUB).stdout.decode()

    assert "/default/orders-billing-dlq" in text
    for word in ("lag", "oldest", "redelivered", "saved cursors", "ACKNOWLEDGED BELOW"):
        assert word in text


def test_purging_drops_messages_and_keeps_offsets(stream: Shell) -> None:
    result = stream.run("topics", "purge", TOPIC, "--before", "4", "--yes")
    assert b"drops 4 messages" in result.stderr
    assert b"dropped 4 messages of /default/orders" in result.stderr
    assert stream.run("read", TOPIC).stdout == lines(*range(4, 10))

    stream.run("topics", "purge", TOPIC, "--yes")
    stream.run("produce", TOPIC, "next")
    row = json.loads(stream.run("read", TOPIC, "--json").stdout)
    assert row["offset"] == 10


@pytest.mark.parametrize(
    "args",
    [
        ("topics", "purge", TOPIC),
        ("topics", "delete", TOPIC),
        ("subs", "seek", *SUB, "latest"),
        ("subs", "delete", *SUB),
        ("subs", "drop-cursor", *SUB, "x"),
    ],
    ids=" ".join,
)
def test_what_destroys_says_so_and_needs_a_yes(args: tuple[str, ...], stream: Shell) -> None:
    stream.run("consume", TOPIC, "-s", "billing", "--start", "earliest", "--count", "1")
    result = stream.run(*args, code=2)

    assert TOPIC.encode() in result.stderr
    assert b"--yes" in result.stderr
    assert described(stream)["lag"] == 9


def test_dead_letters_are_sent_back(stream: Shell) -> None:
    code = f"""
import asyncio, ister
async def main():
    async with ister.connect("{stream.environment["ISTER_URL"]}") as client:
        async with client.subscribe("{TOPIC}", "billing", start=8, max_deliveries=1) as sub:
            for _ in range(2): await (await sub.receive(timeout=10)).nack()
            while not (rows := await client.topics("{TOPIC}-billing-dlq")) or rows[0].next_offset < 2:
                await asyncio.sleep(0.01)
asyncio.run(main())
"""  # noqa: E501
    subprocess.run([*command()[:1], "-c", code], check=True, timeout=WAIT_S)
    assert described(stream)["dead_lettered"] == 2
    assert b" 2, 2 not redriven" in stream.run("subs", "describe", *SUB).stdout
    moved = stream.json("subs", "redrive", *SUB)
    assert moved == {"topic": TOPIC, "subscription": "billing", "moved": 2}
    assert stream.run("read", TOPIC, "--start", "10").stdout == lines(8, 9)
    assert b" 2, 0 not redriven" in stream.run("subs", "describe", *SUB).stdout
    assert b"0 dead letters" in stream.run("subs", "redrive", *SUB).stderr
    result = stream.run("subs", "redrive", SUB[0], "misspelt", code=66)
    assert b"no subscription 'misspelt'" in result.stderr


BAD_STREAM_COMMANDS: list[tuple[tuple[str, ...], int, bytes]] = [
    (("topics", "create", TOPIC, "--max-age", "7d"), 64, b"say --kind stream"),
    (("topics", "create", TOPIC, "--kind", "stream", "--durability", "x"), 64, b"--durability 'x'"),
    (("topics", "create", TOPIC, "--kind", "stream", "--retention", "x"), 64, b"--retention 'x'"),
    (("topics", "create", TOPIC, "--kind", "stream", "--max-age", "x"), 64, b"--max-age 'x'"),
    (("topics", "create", TOPIC, "--kind", "stream", "--durability", "object"), 64, b"--object-st"),
    (("topics", "purge", TOPIC, "--yes"), 66, b"does not exist"),
    (("read", TOPIC), 66, b"does not exist"),
    (("read", TOPIC, "--start", "x"), 64, b"--start 'x' is no place"),
    (("read", TOPIC, "--end", "5", "--follow"), 2, b"not both"),
    (("consume", TOPIC, "--start", "x"), 64, b"--start 'x' is no place"),
    (("subs", "seek", *SUB), 2, b"one of them"),
    (("consume", TOPIC, "--expire-after", "1d"), 64, b"ends with its last consumer"),
    (("subs", "seek", *SUB, "latest", "--yes"), 66, b"no subscription 'billing'"),
    (("subs", "pause", *SUB), 66, b"no subscription 'billing'"),
    (("subs", "save-cursor", *SUB, "x"), 66, b"no subscription 'billing'"),
]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    BAD_STREAM_COMMANDS,
    ids=[" ".join(args) for args, _, _ in BAD_STREAM_COMMANDS],
)
def test_a_mistake_is_one_clear_error(
    args: tuple[str, ...], code: int, words: bytes, shell: Shell
) -> None:
    result = shell.run(*args, code=code)

    assert result.stdout == b""
    assert words in result.stderr


# Starting


def serve(*args: str, code: int, **environment: str) -> str:
    """Start a broker that cannot, and return what it said."""
    result = Shell(**environment).run(
        "serve", "--port", "0", "--http-port", "0", "--no-grpc", *args, code=code
    )
    return result.stderr.decode()


def test_a_data_folder_has_one_broker_at_a_time(broker: BrokerProcess) -> None:
    said = serve("--data", str(broker.folder / "data"), code=73)

    assert f"in use by process {broker.pid}" in said


def segments(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.folder / "data" / "segments").iterdir())


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_damage_stops_the_start_and_is_found_by_a_check(
    own_stream: Shell, broker: BrokerProcess
) -> None:
    own_stream.run("produce", TOPIC, "again")
    own_stream.run("produce", TOPIC, "and more")
    broker.kill()
    data = str(broker.folder / "data")
    [journal] = segments(broker)
    before = journal.read_bytes()
    flip(journal, before.index(b"again"))
    damaged = journal.read_bytes()

    said = serve("--data", data, code=70)
    assert journal.name in said
    assert "ister storage check" in said
    report = own_stream.json("storage", "check", data, code=70)
    assert isinstance(report, dict)
    [problem] = report["problems"]
    assert problem["file"].endswith(journal.name)
    assert problem["position"] > 0
    assert problem["advice"]
    result = own_stream.run("storage", "check", data, code=70)
    assert journal.name.encode() in result.stdout
    assert b": 1 problem in" in result.stderr
    assert journal.read_bytes() == damaged


def test_a_folder_that_is_fine_passes_the_check_and_is_not_changed(
    own_stream: Shell, broker: BrokerProcess
) -> None:
    data = broker.folder / "data"
    own_stream.run("storage", "check", str(data), code=73)
    broker.kill()
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    result = own_stream.run("storage", "check", str(data))

    assert b"no problems" in result.stderr
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_metadata_is_part_of_the_check(own_stream: Shell, broker: BrokerProcess) -> None:
    data = broker.folder / "data"
    own_stream.run("schemas", "register", "orders", "--type", "string", "-", input=b"")
    own_stream.run("schemas", "bind", TOPIC, "orders")
    broker.kill()
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    report = own_stream.json("storage", "check", str(data))

    assert isinstance(report, dict)
    assert report["facts"] == 4  # The subject, its version, its id and the binding.
    assert b" 4 facts of metadata" in own_stream.run("storage", "check", str(data)).stderr
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_damaged_metadata_stops_the_start_and_is_found_by_a_check(
    own_stream: Shell, broker: BrokerProcess
) -> None:
    data = broker.folder / "data"
    own_stream.run("schemas", "register", "orders", "--type", "string", "-", input=b"")
    broker.stop()
    connection = sqlite3.connect(data / "metadata.db")
    with connection:
        connection.execute("DELETE FROM facts WHERE key LIKE 'schemas/versions/%'")
    connection.close()

    # Each row is intact; it is the whole that is not.
    assert "version 1 is missing" in serve("--data", str(data), code=70)
    report = own_stream.json("storage", "check", str(data), code=70)
    assert isinstance(report, dict)
    [problem] = report["problems"]
    assert problem["file"] == "metadata.db"
    assert "version 1 is missing" in problem["reason"]
    (data / "metadata.db").write_bytes(b"?" * 4_096)
    result = own_stream.run("storage", "check", str(data), code=70)
    assert b"metadata.db: byte 0: file is not a database" in result.stdout


def test_a_torn_end_is_a_note_and_the_next_start_cuts_it(
    own_stream: Shell, broker: BrokerProcess
) -> None:
    broker.kill()
    [journal] = segments(broker)
    content = journal.read_bytes()
    end = len(content.rstrip(b"\0"))
    end += -end % 8
    with journal.open("r+b") as file:
        file.seek(end)
        file.write(b"\xff" * 100)

    data = str(broker.folder / "data")
    assert b"torn end" in own_stream.run("storage", "check", data).stderr
    broker.restart()
    assert "torn_tail_cut" in broker.log_text()
    assert own_stream.run("read", TOPIC).stdout == lines(*range(10))


def test_what_is_no_data_folder_is_not_checked(tmp_path: Path) -> None:
    assert b"is not a data folder" in Shell().run("storage", "check", str(tmp_path), code=64).stderr


def test_a_store_that_cannot_be_reached_is_a_clear_error(tmp_path: Path) -> None:
    said = serve(
        "--data", str(tmp_path / "data"), "--object-store", "s3://bucket/x",
        code=74,
        AWS_ENDPOINT_URL="http://127.0.0.1:1",
        AWS_ACCESS_KEY_ID="k",
        AWS_SECRET_ACCESS_KEY="s",
        AWS_REGION="us-east-1",
    )  # fmt: skip

    assert "ister: --object-store s3://bucket/x:" in said
    assert "Traceback" not in said


def test_a_data_folder_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "segments").write_text("")
    (data / "lock").mkdir()

    said = serve("--data", str(data), code=74)
    assert f"ister: --data {data}:" in said
    assert "Traceback" not in said


def test_a_broker_without_streams_leaves_no_folder_behind(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    args = ("serve", "--port", "0", "--http-port", "0", "--no-grpc", "--ready-file", str(ready))
    process = subprocess.Popen(command(*args), cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"broker_ready" not in process.stderr.readline():
            assert process.poll() is None
        shell = Shell(json.loads(ready.read_text())["url"])
        shell.run("produce", "/default/live", "x")
        assert not (tmp_path / "ister-data").exists()

        shell.run("topics", "create", TOPIC, "--kind", "stream")
        shell.run("produce", TOPIC, "x")
        assert (tmp_path / "ister-data" / "segments").is_dir()
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


# Keys


def test_keys_are_created_rotated_and_listed(tmp_path: Path) -> None:
    shell, file = Shell(), str(tmp_path / "keys.json")
    shell.run("keys", "create", file)
    assert b"never replaced" in shell.run("keys", "create", file, code=64).stderr
    shell.run("keys", "rotate", file)
    found = shell.json("keys", "list", file)

    assert isinstance(found, dict)
    assert len(found["keys"]) == 2
    assert found["newest"] == found["keys"][-1]
    assert shell.run("keys", "list", file).stdout.decode().split() == found["keys"]
    assert Path(file).stat().st_mode & 0o077 == 0
    assert b"cannot be read" in shell.run("keys", "list", file + "x", code=64).stderr


def test_encrypted_streams_need_their_keys(start_broker: StartBroker, tmp_path: Path) -> None:
    keys, others = str(tmp_path / "keys.json"), str(tmp_path / "others.json")
    Shell().run("keys", "create", keys)
    Shell().run("keys", "create", others)
    broker = start_broker("--key-file", keys)
    shell = Shell(broker.url)
    shell.run("topics", "create", TOPIC, "--kind", "stream")
    shell.run("produce", TOPIC, "a secret of ours")
    broker.stop()
    data = broker.folder / "data"

    stored = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"a secret of ours" not in stored
    assert "no key was given" in serve("--data", str(data), code=77)
    assert "does not have it" in serve("--data", str(data), "--key-file", others, code=77)
    shell.run("storage", "check", str(data), code=77)
    shell.run("storage", "check", str(data), "--key-file", keys)

    shell.run("keys", "rotate", keys)
    broker.start()
    assert Shell(broker.url).run("read", TOPIC).stdout == b"a secret of ours\n"


# Object stores


def test_a_stream_in_an_object_store_outlives_the_data_folder(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    store = (tmp_path / "store").as_uri()
    first = start_broker("--object-store", store)
    shell = Shell(first.url)
    shell.run("topics", "create", TOPIC, "--kind", "stream", "--durability", "object")
    shell.run("produce", TOPIC, "1", "2")
    first.kill()
    second = start_broker("--object-store", store)

    assert Shell(second.url).run("read", TOPIC).stdout == lines(1, 2)
    second.stop()
    assert b"no problems" in shell.run("storage", "check", store).stderr


def test_old_segments_move_to_the_tier_and_are_read_from_there(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    tier = tmp_path / "tier"
    broker = start_broker("--segment-size", "1MiB", "--tier", tier.as_uri(), "--tier-after", "0")
    shell = Shell(broker.url)
    shell.run("topics", "create", TOPIC, "--kind", "stream", "--durability", "os")
    payloads = b"".join(b"%d %s\n" % (n, b"x" * 1_000) for n in range(1_500))
    shell.run("produce", TOPIC, "--quiet", input=payloads)
    deadline = time.monotonic() + WAIT_S
    while len(segments(broker)) > 1:
        assert time.monotonic() < deadline, broker.log_text()
        time.sleep(0.1)

    assert list((tier / "segments").iterdir())
    assert shell.run("read", TOPIC).stdout == payloads
    broker.stop()
    data = str(broker.folder / "data")
    assert "name it by --tier" in serve("--data", data, code=64)
    assert b"found with --tier" in shell.run("storage", "check", data, code=70).stderr
    shell.run("storage", "check", data, "--tier", tier.as_uri())


def test_an_s3_store_is_reached_by_the_usual_variables(
    start_broker: StartBroker, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, option in (
        ("AWS_ENDPOINT_URL", "endpoint"),
        ("AWS_REGION", "region"),
        ("AWS_ACCESS_KEY_ID", "access_key_id"),
        ("AWS_SECRET_ACCESS_KEY", "secret_access_key"),
    ):
        monkeypatch.setenv(name, s3_server.options[option])
    store = s3_server.url("storage-cli")
    broker = start_broker("--object-store", store)
    shell = Shell(broker.url)
    shell.run("topics", "create", TOPIC, "--kind", "stream", "--durability", "object")
    shell.run("produce", TOPIC, "1", "2")
    broker.kill()
    broker.restart()

    assert shell.run("read", TOPIC).stdout == lines(1, 2)
    broker.stop()
    assert b"no problems" in shell.run("storage", "check", store).stderr

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert "403" in serve("--data", str(broker.folder / "x"), "--object-store", store, code=74)
