"""Explains the failure of a query, and tells whether a retry can help.

Spark tells of a failure with a Java stack trace that has the Python one in it. Of that, a person
needs the last line and a way out; all of it goes to the log. Failures that pass by themselves are
those of a broker or an executor that is away; anything else would fail the same way again.
"""

import re
import traceback
from dataclasses import dataclass

from ister.base.errors import BrokenError, BusyError, InvalidError, IsterError, leaves
from ister.spark.pipelines.runtime.building import StepError

# A text for a person: what is longer has a query's plan or half a program in it.
TEXT_CHARACTERS_MAX = 2_000

# Queries notice within seconds that their broker is away: each asks it for 150 ms at a time, and
# reports after its batch.
SAME_S = 10.0

_CONDITION = re.compile(r"^\s*\[(?P<name>[A-Z0-9_.]+)\]\s*")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
_POSITION = re.compile(r"line (\d+),? pos(?:ition)? (\d+)", re.IGNORECASE)
_WRAPPING = re.compile(
    r"^(?:.*?terminated with exception: |An error occurred while calling \S+\s*: (?:[\w.$]+: )?)",
    re.DOTALL,
)
# The last line of a Python traceback: `ister.base.errors.busy.NotConnectedError: no broker at ...`.
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*): (?P<text>.*)$", re.MULTILINE)
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)

# What Spark says of itself, and the way out of it.
_HINTS = {
    "STREAMING_OUTPUT_MODE": (
        "give the source a `watermark` on the column that is grouped by, or set the sink's `mode` "
        "to `update` or `complete`"
    ),
    "STATE_STORE": (
        "the state in the checkpoint was made by another shape of this query: undo the change, or "
        "start over with `--checkpoint` and a new folder"
    ),
    "STREAM_STREAM_JOIN": "give both sources a `watermark`, and the join a range of time",
    "TABLE_OR_VIEW_NOT_FOUND": "views are the sources, tables and steps before this one",
    "DATA_SOURCE_NOT_FOUND": "run `pip install 'ister[spark]'` where Spark runs",
    "UNSUPPORTED_STREAMING_OPERATOR": "Spark cannot do this to a stream",
}

_NO_PYTHON = (
    "if this goes on: set PYSPARK_PYTHON to a Python that is at that path on every machine and has "
    "`ister[spark]` installed"
)

# Of machines and processes that may be there again later.
_PASSING = re.compile(
    r"ExecutorLostFailure|Connection refused|Connection reset|Broken pipe"
    r"|Python worker exited unexpectedly|Python worker failed to connect back|TimeoutException"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in words for people, whether it can pass by itself, and the exit code if not."""

    text: str
    can_pass: bool
    exit_code: int


class RecentFailures:
    """Tells whether another sink has just failed for the same reason.

    The sinks of a pipeline and its dead letters share a broker: when it is away all of them fail,
    and the reason is worth one line.
    """

    def __init__(self) -> None:
        self._sink = self._text = ""
        self._at_s = 0.0

    def is_new(self, sink: str, text: str, now_s: float) -> bool:
        """Whether no other sink has failed with this text in the last `SAME_S` seconds."""
        is_other = sink != self._sink
        if is_other and text == self._text and now_s - self._at_s < SAME_S:
            return False
        self._sink, self._text, self._at_s = sink, text, now_s
        return True


def explain(error: BaseException) -> Failure:
    """Return what an exception of Spark, or of ours, comes to."""
    if isinstance(error, IsterError):
        return Failure(str(error), isinstance(error, BusyError), error.exit_code)
    if isinstance(error, StepError):
        inner = explain(error.__cause__ or error)
        return Failure(f"{error}: {inner.text}", inner.can_pass, inner.exit_code)
    if _is_java_gone(error):
        text = "Spark's Java process is gone: the log says why"
        return Failure(text, can_pass=False, exit_code=BrokenError.exit_code)
    if place := _place_of(error):
        said = f"{place}: {type(error).__name__}: {error}"
        can_pass = _PASSING.search(said) is not None
        code = BusyError.exit_code if can_pass else InvalidError.exit_code
        return Failure(_cut(said), can_pass, code)
    return explain_text(str(error))


def _place_of(error: BaseException) -> str:
    """Return where a function of the user raised this, `rules.py:12`; nothing if Spark did."""
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not _is_foreign(one.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _is_foreign(file: str) -> bool:
    return any(part in file for part in ("/pyspark/", "/py4j/", "/ister/spark/", "<frozen "))


def explain_text(text: str) -> Failure:
    """Return what a text of Spark's comes to."""
    text = _WRAPPING.sub("", text, count=1)
    text = text.partition("=== Streaming Query ===")[0]
    known = _find_ister_error(text)
    if known is not None:
        name, said = known
        kind = _LEAVES[name]
        return Failure(said, issubclass(kind, BusyError), kind.exit_code)
    can_pass = _PASSING.search(text) is not None
    code = BusyError.exit_code if can_pass else InvalidError.exit_code
    if "Traceback (most recent call last)" in text:
        return Failure(_of_python(text), can_pass, code)
    return Failure(_of_spark(text), can_pass, code)


def _find_ister_error(text: str) -> tuple[str, str] | None:
    """Return the name and the words of an error of ours somewhere in a text; the last counts."""
    found = None
    for match in re.finditer(r"(?:[\w.]*\.)?(?P<name>[A-Z]\w+Error): (?P<text>.*)", text):
        if match["name"] in _LEAVES:
            found = (match["name"], _cut(_SQLSTATE.sub("", _rest(text, match)).strip()))
    return found


def _rest(text: str, match: re.Match[str]) -> str:
    """Return the words of an error: its line, and those below that are indented as lists are."""
    lines = [match["text"]]
    for line in text[match.end() :].splitlines()[1:]:
        if not line.startswith("  - "):
            break
        lines.append(line)
    return "\n".join(lines)


def _of_python(text: str) -> str:
    """Return `fraud.py:42: ValueError: bad value` of a traceback."""
    raised = list(_RAISED.finditer(text))
    places = [found for found in _FRAME.finditer(text) if not _is_foreign(found["file"])]
    said = f"{raised[-1]['name']}: {raised[-1]['text']}" if raised else text.strip()
    said = _SQLSTATE.sub("", said).strip()
    return _cut(f"{places[-1]['file']}:{places[-1]['line']}: {said}" if places else said)


def _of_spark(text: str) -> str:
    """Return what Spark says without its marks, with the way out where there is one."""
    found = _CONDITION.match(text)
    name = found["name"] if found else ""
    rest = text[found.end() :] if found else text
    said, _, behind = rest.partition(" SQLSTATE")
    # Without a state, the plan begins on a line of its own.
    said = said.partition("\n'")[0].partition("\n+-")[0].strip().rstrip(";")
    position = _POSITION.search(behind) or _POSITION.search(said)
    if position is not None and position[0] not in said:
        said = f"line {position[1]} of its SQL: {said}"
    for start, hint in _HINTS.items():
        if name.startswith(start):
            return _cut(f"{said}\n  {hint}")
    if "Python worker failed to connect back" in said:
        return _cut(f"{said}\n  {_NO_PYTHON}")
    return _cut(said)


def _is_java_gone(error: BaseException) -> bool:
    return type(error).__name__ in ("Py4JNetworkError", "Py4JError", "ConnectionRefusedError")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "…"


_LEAVES: dict[str, type[IsterError]] = {kind.__name__: kind for kind in leaves().values()}
