"""`make demo` with its pipeline; the half without is in tests/e2e/test_cli.py."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import plain_environment

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"
# Half a minute on two idle cores; other tests start Spark at the same time.
WAIT_S = 240.0


def start_demo(*args: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DEMO), "--seconds", "0.5", *args],
        env=plain_environment() | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_demo_counts_each_order_exactly_once_with_spark() -> None:
    demo = start_demo("--pipeline-seconds", "2")

    out, err = demo.communicate(timeout=WAIT_S)

    assert demo.returncode == 0, out + err
    assert err == ""
    assert "each exactly once" in out, out
    # It showed totals while they changed: each time they were less than in the end.
    shown = [numbers(line)[:4] for line in out.splitlines() if line.startswith("east ")]
    (sent,) = [numbers(line)[0] for line in out.splitlines() if line.startswith("the shop sent")]
    assert shown, out
    assert all(sum(counts) < sent for counts in shown), out


def numbers(line: str) -> list[int]:
    """Return the whole numbers of a line, as `12,345`."""
    return [int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", line)]


def test_an_interrupted_demo_ends_without_traces_and_leaves_no_process(tmp_path: Path) -> None:
    demo = start_demo(TMPDIR=str(tmp_path))
    assert demo.stdout is not None
    said = ""
    while "Spark adds up orders" not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line

    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=WAIT_S)

    assert demo.returncode == 0, out + err
    assert out == "stopped\n"
    assert err == ""
    # The folder of the demo has its broker's data and its pipeline's words: no process has it open.
    assert not list(tmp_path.glob("ister-demo-*"))
    assert not processes_that_mention(str(tmp_path))


def processes_that_mention(text: str) -> list[str]:
    """Return the command lines of this machine that have `text` in them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # It has ended meanwhile.
        if text in words and folder.name != str(os.getpid()):
            found.append(words)
    return found


def test_the_demo_without_pyspark_says_what_to_install(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not installed')\n")

    demo = start_demo(PYTHONPATH=str(tmp_path))
    out, err = demo.communicate(timeout=WAIT_S)

    assert demo.returncode == 0, out + err
    assert err == ""
    assert re.search(r"^no live totals: .*ister\[spark\]", out, re.MULTILINE), out
