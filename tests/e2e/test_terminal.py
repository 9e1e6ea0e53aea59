"""Control characters in received text are escaped on a terminal (a pty), by all commands."""

import json
import os
import pty
import random
import re
import select
import signal
import socket
import threading
import time
import unicodedata
from collections.abc import Iterator

import pytest
from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.nursery import IsterProcess
from tests.e2e.shell import Shell

from ister import sync
from ister.wire import ErrorReply, control_frame

pytestmark = pytest.mark.e2e

WAIT_S = 30.0
SEED = 7
# What a terminal, or a reader, obeys. A pty has \r before \n.
CONTROL_CATEGORIES = {"Cc", "Cf", "Zl", "Zp"}
ATTACKS = [
    "\x1b[2J\x1b[H",  # the screen is empty
    "\x1b]52;c;cm0gLXJmIH4=\x07",  # the clipboard has something else
    "\x1b]0;title\x1b\\",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP$q\x1b\\",
    "\x9b31m",
    "\x9d0;x\x9c",
    "safe\rEVIL",
    "a\b\b\bEVIL",
    "\x1b[8mhidden",
    "\u202etxt.exe\u202c",
    "\u2066\u200b\u2069",
    "\u2028",
    "\x0e\x07\x0b\x7f",
    "[link=http://evil]markup[/link][/]",
]
C0 = "".join(map(chr, (*range(9), *range(11, 32), 127)))
C1 = "".join(map(chr, range(0x80, 0xA0)))


def make_hostile_texts(count: int = 40) -> list[str]:
    """Return texts with control characters, known ones and random ones."""
    chance = random.Random(SEED)
    letters = C0 + C1 + "\x1b[];0123456789mHJK\u202e\u2067\u200fabc 漢"
    made = ["".join(chance.choices(letters, k=chance.randint(1, 60))) for _ in range(count)]
    return ATTACKS + made


HOSTILE = make_hostile_texts()
ALL = "".join(HOSTILE)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with hostile texts in every place where a client can put a text."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    with sync.connect(broker.url) as client:
        client.create_topic("/default/in", kind="stream")
        client.create_topic("/default/due", kind="timeline")
        with client.producer("/default/in") as producer:
            for text in HOSTILE:
                producer.send(text.encode(), key=text[:20], attributes={text[:20]: text})
            producer.send(b"\x9b2J\xff\x1b[2J")
        timeline = client.timeline("/default/due")
        for slot, text in enumerate(HOSTILE):
            name = f"{slot}{text[:20]}".replace("\0", "")
            timeline.put(text.encode(), id=name, attributes={text[:20]: text})
        with client.subscribe("/default/in", "named", filters={ALL[:60]: ALL[:60]}):
            pass
    yield broker
    broker.kill()


def on_terminal(
    url: str, *args: str, interrupt_after_s: float = 0.0, colors: bool = False
) -> bytes:
    """Run a command on a terminal of its own, and return its output."""
    environment = {**plain_environment(), "ISTER_URL": url, "COLUMNS": "300", "TERM": "dumb"}
    if colors:
        environment["TERM"] = "xterm-256color"
    terminal, end = pty.openpty()
    process = IsterProcess([*args], env=environment, stdin=end, stdout=end, stderr=end)
    os.close(end)
    written = bytearray()
    deadline = time.monotonic() + WAIT_S
    interrupt_s = time.monotonic() + interrupt_after_s if interrupt_after_s else deadline
    try:
        while time.monotonic() < deadline:
            if time.monotonic() >= interrupt_s:
                interrupt_s = deadline
                process.send_signal(signal.SIGINT)
            if not select.select([terminal], [], [], 0.05)[0]:
                continue
            try:
                written += os.read(terminal, 65_536)
            except OSError:  # The command has ended.
                return bytes(written)
        raise AssertionError(f"{args} did not end: {bytes(written)!r}")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def control_characters_in(written: bytes) -> set[str]:
    """Return the control characters in the output."""
    text = written.decode(errors="backslashreplace").replace("\r\n", "\n")
    return {c for c in text if unicodedata.category(c) in CONTROL_CATEGORIES} - {"\n", "\t"}


COMMANDS: dict[str, list[str]] = {
    "read": ["read", "/default/in"],
    "read json": ["read", "/default/in", "--json"],
    "consume": [
        "consume", "/default/in", "-s", "c", "--start", "earliest", "--count", str(len(HOSTILE))
    ],
    "consume json": [
        "consume", "/default/in", "-s", "cj", "--start", "earliest", "--count", "20", "--json"
    ],
    "timeline list": ["timeline", "list", "/default/due"],
    "timeline list json": ["timeline", "list", "/default/due", "--json"],
    "timeline get": ["timeline", "get", "/default/due", f"0{HOSTILE[0][:20]}"],
    "timeline missing": ["timeline", "get", "/default/due", ALL[:100]],
    "timeline delete": ["timeline", "delete", "/default/due", f"1{HOSTILE[1][:20]}", "--yes"],
    "subs": ["subs", "list"],
    "subs describe": ["subs", "describe", "/default/in", "named"],
    "topics": ["topics", "describe", "/default/in"],
    "top": ["top", "--once", "--interval", "0.1"],
    "bad topic": ["consume", f"/default/{ALL[:100]}"],
    "bad option": ["consume", "/default/in", f"--{ALL[:60]}"],
    "bad choice": ["consume", "/default/in", "--type", ALL[:60]],
    "bad file": ["schemas", "register", "s", f"/nowhere/{ALL[8:60]}"],
    "verbose": ["--verbose", "topics", "list", f"/default/{ALL[:60]}"],
}  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_control_characters_are_escaped_on_a_terminal(
    broker: BrokerProcess, words: list[str]
) -> None:
    # An argument of a process has no NUL.
    written = on_terminal(broker.url, *[word.replace("\0", "") for word in words])

    assert written
    assert control_characters_in(written) == set()


def test_only_our_own_escape_sequences_set_colors(broker: BrokerProcess) -> None:
    written = on_terminal(broker.url, "timeline", "list", "/default/due", colors=True)

    ours = re.sub(rb"\x1b\[[0-9;]*m", b"", written)
    assert len(ours) < len(written)
    assert rb"\x1b[2J" in ours
    assert b"\x1b[8m" not in written
    assert control_characters_in(ours) == set()


def test_a_live_consumer_of_a_timeline_prints_no_control_characters(broker: BrokerProcess) -> None:
    written = on_terminal(
        broker.url, "timeline", "consume", "/default/due", "--count", str(len(HOSTILE) - 1)
    )

    assert b"EVIL" in written
    assert control_characters_in(written) == set()


def test_answers_and_errors_of_a_responder_are_escaped(broker: BrokerProcess) -> None:
    stop = threading.Event()

    def answer() -> None:
        with (
            sync.connect(broker.url) as client,
            client.subscribe("/default/ask", "reply", type="shared") as sub,
        ):
            ready.set()
            while not stop.is_set():
                for message in sub.fetch(10, timeout=0.1):
                    message.reply(ALL.encode(), attributes={"error": ALL[:1_000]})

    ready = threading.Event()
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        plain = on_terminal(broker.url, "request", "/default/ask", "?")
        as_json = on_terminal(broker.url, "request", "/default/ask", "?", "--json")
    finally:
        stop.set()
        thread.join()

    assert b"EVIL" in plain
    assert b"EVIL" in as_json
    assert control_characters_in(plain) == control_characters_in(as_json) == set()


def test_texts_of_a_hostile_broker_are_escaped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"ister://127.0.0.1:{server.getsockname()[1]}"

        def refuse() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65_536)
                    peer.sendall(control_frame(ErrorReply(code=2999, text=ALL)))

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        written = [
            on_terminal(url, "topics", "list"),
            on_terminal(url, "--verbose", "topics", "list"),
        ]

    for one in written:
        assert b"EVIL" in one, one
        # The log of --verbose has colors of its own.
        assert control_characters_in(re.sub(rb"\x1b\[[0-9;]*m", b"", one)) == set()


def test_a_pipe_gets_payloads_byte_for_byte(broker: BrokerProcess) -> None:
    shell = Shell(broker.url)
    plain = shell.run("read", "/default/in").stdout
    rows = shell.run("read", "/default/in", "--json").stdout

    sent = [text.encode() for text in HOSTILE] + [b"\x9b2J\xff\x1b[2J"]
    assert plain == b"".join(payload + b"\n" for payload in sent)
    texts = [json.loads(line).get("payload") for line in rows.split(b"\n")[:-1]]
    assert texts[: len(HOSTILE)] == HOSTILE


def test_the_log_of_a_broker_on_a_terminal_has_no_control_characters(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("served")
    ready = folder / "ready.json"
    strange = folder / "a\x1b[2J\u202e\x9b31m"

    def upset() -> None:
        deadline = time.monotonic() + WAIT_S
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        url = json.loads(ready.read_text())["url"]
        host, _, port = url.removeprefix("ister://").rpartition(":")
        for text in HOSTILE:
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(text.encode() * 10)

    thread = threading.Thread(target=upset)
    thread.start()
    written = on_terminal(
        "", "serve", "--data", str(strange), "--port", "0", "--http-port", "0", "--no-grpc",
        "--ready-file", str(ready), "--log-level", "debug", interrupt_after_s=4.0,
    )  # fmt: skip
    thread.join()

    assert rb"\x1b[2J" in written
    assert control_characters_in(re.sub(rb"\x1b\[[0-9;]*m", b"", written)) == set()
