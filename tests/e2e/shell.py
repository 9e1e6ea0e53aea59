"""The command line as processes: `ister` commands against one broker."""

import json
import subprocess
import sys

from tests.e2e.conftest import plain_environment
from tests.e2e.nursery import IsterProcess

WAIT_S = 30.0

Completed = subprocess.CompletedProcess[bytes]


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "ister", *args]


class Shell:
    """Runs `ister` commands against one broker, and ends those still running."""

    def __init__(self, url: str = "", **environment: str) -> None:
        self.environment = {**plain_environment(), "COLUMNS": "200", **environment}
        if url:
            self.environment["ISTER_URL"] = url
        self.running: list[subprocess.Popen[bytes]] = []

    def run(self, *args: str, input: bytes = b"", code: int = 0) -> Completed:
        """Run a command to its end and check its exit code."""
        with IsterProcess(
            [*args],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                out, err = process.communicate(input, timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == code, f"{process.returncode}: {(out + err).decode()}"
        assert b"Traceback" not in err, err.decode()
        return Completed(args, process.returncode, out, err)

    def json(self, *args: str, code: int = 0) -> object:
        """Run a command with `--json` and return what it printed."""
        return json.loads(self.run(*args, "--json", code=code).stdout)

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a command and return once it has said on stderr that it listens."""
        process = IsterProcess(
            [*args],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What a `readline` of ours has taken beyond the line, `communicate` would not see.
            bufsize=0,
        )
        self.running.append(process)
        assert process.stderr is not None
        words = process.stderr.readline()
        assert b"Ctrl-C ends" in words, words + process.stderr.read()
        return process

    def close(self) -> None:
        """End what is still running."""
        for process in self.running:
            process.kill()
            process.communicate()


def finish(process: subprocess.Popen[bytes], *, code: int = 0) -> tuple[bytes, bytes]:
    """Wait for a command and return its stdout and stderr."""
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, err.decode()
    return out, err
