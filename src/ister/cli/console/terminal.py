"""What every command shares: words on stderr, data on stdout, one event loop, tidy endings.

Always true:
- an error is one clear line and the exit code of its base class, never a traceback;
- a reader of our stdout that leaves (`| head`) ends the command quietly;
- control characters in received text are escaped on a terminal. Only this module of the command
  line prints. A pipe gets payloads byte for byte.
"""

import asyncio
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import msgspec
import typer

from ister.base import hide_secrets, printable, printable_json, printable_lines
from ister.base.errors import BadRequestError, BrokenError, IsterError, UnauthenticatedError
from ister.cli.console.words import in_options
from ister.telemetry import configure_log, make_console

if TYPE_CHECKING:
    from rich.console import Console

# 128 + the number of the signal, as shells report it.
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
# EX_IOERR of sysexits.h, whose numbers our errors use too.
EXIT_FILE = 74

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="How long to wait.")
]

_FIGURE = re.compile(r"-|\d[\d,.]*(?: ?(?:[KMGT]i)?B|ms|s|m|h|d)?")

_T = TypeVar("_T")


def say(text: str) -> None:
    """Print a message for people on stderr. Text that looks like a password or a key is hidden."""
    print(printable_lines(hide_secrets(text)), file=sys.stderr, flush=True)


def write(data: bytes) -> None:
    """Write data to stdout. On a terminal, control characters are escaped."""
    if sys.stdout.isatty():
        text = printable_lines(data.decode(errors="backslashreplace"))
        data = text.encode(sys.stdout.encoding, errors="backslashreplace")
    sys.stdout.buffer.write(data)


def flush() -> None:
    """Let readers of stdout have what was written so far."""
    sys.stdout.buffer.flush()


def json_line(value: object) -> bytes:
    """Return a JSON value as a line for `write`, with control characters escaped on a terminal."""
    line = msgspec.json.encode(value) + b"\n"
    # Not in `write`: its escapes are not valid JSON.
    return printable_json(line.decode()).encode() if sys.stdout.isatty() else line


def write_json(value: object) -> None:
    """Write one JSON value as a line."""
    write(json_line(value))
    flush()


def stderr_console() -> "Console":
    """Return the console for words and progress."""
    return make_console(stderr=True)


def stdout_console(*, piped_width: int) -> "Console":
    """Return the console for tables. Lines in a pipe or a file are `piped_width` wide."""
    return make_console(width=None if sys.stdout.isatty() else piped_width)


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to stdout. Columns whose cells are numbers are aligned to the right.

    It is for people, also in a pipe: programs get what a cell really is from `--json`.
    """
    from rich.table import Table

    shown = [[_cell(value) for value in row] for row in rows]
    numeric = [
        bool(shown) and all(_is_number(row[slot]) for row in shown) for slot in range(len(columns))
    ]
    # Wide enough that no name is cut: a script may read it.
    console = stdout_console(piped_width=10_000)
    lines = _plain_lines([columns, *shown], numeric, width=console.width)
    if lines is not None:
        console.print(lines[0], style="bold")
        sys.stdout.writelines(line + "\n" for line in lines[1:])
        sys.stdout.flush()  # Before `write` writes to the buffer below.
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for slot, name in enumerate(columns):
        table.add_column(name, justify="right" if numeric[slot] else "left", no_wrap=True)
    for row in shown:
        table.add_row(*row)
    console.print(table)


def write_fields(rows: Sequence[tuple[str, object]]) -> None:
    """Write names and values to stdout, one of each on a line: one thing, for people."""
    width = max(len(name) for name, _ in rows)
    text = "".join(f"{name:<{width}}  {_cell(value)}\n" for name, value in rows)
    write(text.encode())
    flush()


def counted(count: int, what: str, plural: str = "") -> str:
    """Return `1 message`, or `1,000 messages`."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def confirm(what: str, *, yes: bool) -> None:
    """Say what will happen, and go on only if the user agrees. Exit code 1 if not."""
    say(what)
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to ask: add --yes to do it")
    typer.confirm("Go on?", abort=True, err=True)


def run(main: Coroutine[Any, Any, _T], *, interrupt_code: int = EXIT_INTERRUPTED) -> _T:
    """Run a command's coroutine; Ctrl-C cancels it and exits with `interrupt_code`.

    So does SIGTERM, with a code of its own: what a command has to tidy up, it does.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_terminable(main))
        except KeyboardInterrupt:
            raise typer.Exit(interrupt_code) from None
        except asyncio.CancelledError:
            raise typer.Exit(EXIT_TERMINATED) from None
        except BrokenPipeError:
            # Whoever read our stdout has seen enough.
            forget_stdout()
            raise typer.Exit(0) from None


async def _terminable(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that SIGTERM cancels."""
    if sys.platform == "win32":
        return await main
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await main


def guard(command: Callable[[], object]) -> NoReturn:
    """Run the whole program and end the process as the outcome asks for."""
    _fill_standard_streams()
    _buffer_stdout()
    code = _exit_code(command)
    # Not left to the interpreter: when that fails to write what is left, the code is 120.
    if not code:
        code = _exit_code(sys.stdout.flush)
    try:
        sys.stdout.flush()
    except OSError:
        forget_stdout()
    sys.exit(code)


def _exit_code(act: Callable[[], object]) -> str | int | None:
    """Do something, say what went wrong, and return the exit code that follows."""
    try:
        act()
    except SystemExit as ended:
        return ended.code
    except IsterError as error:
        hint = "; see --token-file" if isinstance(error, UnauthenticatedError) else ""
        say(f"ister: {in_options(str(error))}{hint}")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        forget_stdout()
    except OSError as error:
        say(f"ister: {error.filename or 'input or output'}: {error.strerror or error}")
        return EXIT_FILE
    except Exception as error:  # noqa: BLE001 - the top of the program
        if {"-v", "--verbose"} & set(sys.argv):
            say(traceback.format_exc())
        say(f"ister: bug: {type(error).__name__}: {error} (`ister --verbose ...` shows where)")
        return BrokenError.exit_code
    return 0


def parse_pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Return `a=b` words as a dictionary, or raise `BadRequestError`."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadRequestError(f"{option} {word!r} is not name=value")
        pairs[name] = value
    return pairs


def configure_cli_log(*, verbose: bool) -> None:
    """Let the SDK tell of trouble on stderr, of everything with `--verbose`."""
    configure_log(level="debug" if verbose else "error", format="console")


def _fill_standard_streams() -> None:
    """Open what our starter has closed (`2>&-`) on nothing.

    Else the first socket takes the free number: words would go to the broker, and libuv ends the
    process when it closes a descriptor that low.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != fd:
                os.dup2(nowhere, fd)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _buffer_stdout() -> None:
    """Give stdout a buffer where PYTHONUNBUFFERED has taken it, as in many containers.

    Without one a write that a signal interrupts has written a part, and the rest is lost.
    """
    if isinstance(sys.stdout.buffer, io.RawIOBase):
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        sys.stdout = open(1, "w", 1, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115


def forget_stdout() -> None:
    """Keep the interpreter from complaining about the closed pipe once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def _plain_lines(
    rows: Sequence[Sequence[str]], numeric: Sequence[bool], *, width: int
) -> list[str] | None:
    """Return a table as lines, or `None` when some text must be cut or made harmless.

    As `rich` makes them, in a fraction of its time: 1.3 ms a row made a thousand of them slow.
    """
    if not all(cell.isascii() and cell.isprintable() for row in rows for cell in row):
        return None
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        return None
    form = "  ".join(
        f"{{:{'>' if is_figure else '<'}{size}}}"
        for size, is_figure in zip(widths, numeric, strict=True)
    )
    return [form.format(*row) for row in rows]


def _is_number(text: str) -> bool:
    """Whether a cell is a figure, with a unit or without, or stands for none."""
    return _FIGURE.fullmatch(text) is not None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
