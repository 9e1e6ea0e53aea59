"""What the guide's chapter on TLS and tokens says to paste works as pasted."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
POLL_S = 0.02
PORTS = ("6655", "8655", "6650", "50051")


def blocks(language: str) -> list[str]:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    chapter = guide.split("\n## Security: TLS and tokens\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)


class Paste:
    """A folder to paste into, with ports of its own in place of those of the guide."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with ExitStack() as stack:
            taken = [stack.enter_context(socket.socket()) for _ in PORTS]
            for one in taken:
                one.bind(("127.0.0.1", 0))
            free = [str(one.getsockname()[1]) for one in taken]
        self.ports = dict(zip(PORTS, free, strict=True))
        flags = ("ISTER_PORT", "ISTER_HTTP_PORT", "ISTER_GRPC_PORT", "ISTER_ADMIN_PORT")
        plain = {key: text for key, text in os.environ.items() if not key.startswith("ISTER_")}
        scripts = Path(sys.executable).parent
        self.environment = {
            **plain,
            **dict(zip(flags, free, strict=True)),
            "PATH": f"{scripts}{os.pathsep}{plain['PATH']}",
        }

    def adapted(self, text: str) -> str:
        return re.sub(r"\b(6655|8655)\b", lambda found: self.ports[found[0]], text)

    def run(self, *command: str) -> str:
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def paste(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paste]:
    """The broker of the chapter's first block."""
    missing = [tool for tool in ("openssl", "curl") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {missing}")
    folder = tmp_path_factory.mktemp("paste")
    paste = Paste(folder)
    script = blocks("sh")[0].replace("ister serve", "exec ister serve --ready-file ready.json")
    with subprocess.Popen(
        ["bash", "-euc", script],
        cwd=folder,
        env=paste.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as broker:
        deadline = time.monotonic() + WAIT_S
        while not (folder / "ready.json").exists():
            ended = broker.poll() is not None or time.monotonic() > deadline
            assert not ended, broker.communicate(timeout=WAIT_S)[0].decode()
            time.sleep(POLL_S)
        yield paste
        broker.terminate()
        broker.communicate(timeout=WAIT_S)
    assert broker.returncode == 0


@pytest.mark.e2e
def test_the_commands_of_the_chapter_reach_its_broker(paste: Paste) -> None:
    script = paste.adapted(blocks("sh")[1])
    printed = paste.run("bash", "-euc", script.replace("curl ", "curl -sS --fail "))

    assert "ister_uptime_seconds" in printed


@pytest.mark.e2e
def test_the_python_of_the_chapter_reaches_its_broker(paste: Paste) -> None:
    [program] = blocks("python")

    assert paste.run(sys.executable, "-c", paste.adapted(program)).startswith("[")


@pytest.mark.e2e
def test_a_digest_made_as_the_chapter_says_stands_for_its_token(paste: Paste) -> None:
    from ister.server.tokens import parse_tokens

    token = (paste.folder / "billing.token").read_text().strip()
    digest = paste.run("bash", "-c", f'TOKEN={token}; printf %s "$TOKEN" | sha256sum').split()[0]

    assert parse_tokens(f"billing sha256:{digest}", "f").find(token) == "billing"


@pytest.mark.parametrize("page", ["guide.md", "http.md"])
def test_no_command_shows_a_token_among_the_processes(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    # What the shell does itself starts no process.
    commands = [line for line in lines if re.match(r"(\$ )?(curl|ister) ", line)]

    assert any("-H @billing.header" in line for line in commands)
    assert [line for line in commands if "$(" in line] == []
