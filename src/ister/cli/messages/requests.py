"""`ister request` and `ister reply`: questions and answers over a topic."""

import asyncio
import os
import signal
import sys
import time
from typing import Annotated

import typer

from ister.base.errors import BadRequestError
from ister.base.limits import MIB
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.terminal import (
    EXIT_INTERRUPTED,
    JsonOption,
    flush,
    parse_pairs,
    run,
    say,
    write,
    write_json,
)
from ister.client import Answer, Message, Subscription

# What the answer of a command may be at most, and a bound for memory: concurrency × this.
ANSWER_BYTES_MAX = 8 * MIB

# The attribute that tells the asker why there is no proper answer.
ERROR_ATTRIBUTE = "error"


def request(
    topic: Annotated[str, topic_argument("Where somebody answers, as /default/price.")],
    payload: Annotated[
        str, typer.Argument(help="The question. '-', or none, reads all of stdin.")
    ] = "-",
    url: UrlOption = URL,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")
    ] = 5.0,
    retries: Annotated[int, typer.Option(min=0, help="Send again so often within --timeout.")] = 0,
    hedge_after: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="SECONDS", help="Send a second time when no answer came by then."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the message.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Attribute. Repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a question and print the first answer.

    With --retries or --hedge-after a responder may get the question more than once.

    The exit code is 66 when nobody listens, 75 when no answer came in time, and 1 when the
    answer says that it is an error.

    \b
    Examples:
      ister request /default/upper "hello"
      cat order.json | ister request /default/check - --timeout 10 --retries 2
    """
    attributes = parse_pairs(attribute or (), "--attribute")
    question = sys.stdin.buffer.read() if payload == "-" else payload.encode()

    async def ask() -> Answer:
        async with connect(url) as client:
            start = time.perf_counter()
            answer = await client.request(
                topic,
                question,
                timeout=timeout,
                key=key,
                attributes=attributes or None,
                retries=retries,
                hedge_after=hedge_after,
            )
            _print_answer(answer, time.perf_counter() - start, as_json=as_json)
            return answer

    answer = run(ask())
    if ERROR_ATTRIBUTE in answer.attributes:
        say(f"ister: the responder reports: {answer.attributes[ERROR_ATTRIBUTE]}")
        raise typer.Exit(1)


def reply(
    topic: Annotated[str, topic_argument("Where to answer, as /default/price.")],
    text: Annotated[str | None, typer.Argument(help="Answer every request with this.")] = None,
    url: UrlOption = URL,
    echo: Annotated[bool, typer.Option("--echo", help="Answer with the question.")] = False,
    command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Answer with what this shell command makes of it."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1_000, help="Commands that run at once.")
    ] = 8,
    command_timeout: Annotated[
        float, typer.Option(min=0.01, metavar="SECONDS", help="Then a command is killed.")
    ] = 30.0,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", help="Responders of one name share the work.")
    ] = "reply",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many answers.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No words on stderr.")] = False,
) -> None:
    """Answer requests: with a text, the question itself, or the output of a command.

    A command gets the question on stdin and the topic in $ISTER_TOPIC. When it fails or takes
    too long, the answer is empty and its attribute `error` tells why.

    \b
    Examples:
      ister reply /default/ping pong
      ister reply /default/echo --echo
      ister reply /default/upper --command "tr a-z A-Z"
    """
    if [text is not None, echo, command is not None].count(True) != 1:
        raise typer.BadParameter("give one of: a text, --echo, --command")

    async def answer_all() -> None:
        async with (
            connect(url) as client,
            client.subscribe(topic, subscription, type="shared") as sub,
        ):
            if not quiet:
                say(f"answering on {topic} as {subscription}; Ctrl-C ends")
            if command is not None:
                shell = _Shell(command, concurrency=concurrency, timeout_s=command_timeout)
                await shell.answer_all(sub, count)
            else:
                await _answer_all(sub, None if text is None else text.encode(), count)

    run(answer_all(), interrupt_code=0 if count is None else EXIT_INTERRUPTED)


def _print_answer(answer: Answer, elapsed_s: float, *, as_json: bool) -> None:
    if as_json:
        write_json(
            {
                "payload": answer.decode(errors="replace"),
                "attributes": answer.attributes,
                "seconds": round(elapsed_s, 6),
            }
        )
    elif answer or ERROR_ATTRIBUTE not in answer.attributes:
        write(answer + b"\n")
        flush()


async def _answer_all(sub: Subscription, text: bytes | None, count: int | None) -> None:
    answered = 0
    async for message in sub:
        if message.reply_address is None:
            continue  # Somebody published here without asking: nobody waits for an answer.
        await message.reply(message.payload if text is None else text)
        answered += 1
        if answered == count:
            return


class _Shell:
    """Answers with the output of a shell command, several at a time."""

    def __init__(self, command: str, *, concurrency: int, timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(concurrency)

    async def answer_all(self, sub: Subscription, count: int | None) -> None:
        """Answer until `count` requests are answered."""
        started = 0
        async with asyncio.TaskGroup() as tasks:
            async for message in sub:
                if message.reply_address is None:
                    continue
                # Taken before the next message: what waits, waits in the broker.
                await self._free.acquire()
                tasks.create_task(self._answer(message))
                started += 1
                if started == count:
                    return

    async def _answer(self, message: Message) -> None:
        try:
            answer, error = await self._run(message)
            await message.reply(answer, attributes={ERROR_ATTRIBUTE: error} if error else None)
            if error:
                say(f"command: {error}")
        finally:
            self._free.release()

    async def _run(self, message: Message) -> tuple[bytes, str]:
        """Return the command's output, or nothing and what went wrong."""
        process = await asyncio.create_subprocess_shell(
            self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "ISTER_TOPIC": message.topic},
            # A group of its own, so that what the shell has started ends with it.
            start_new_session=True,
        )
        # Beside the answer, not before it: a command may answer without reading its input.
        feeding = asyncio.ensure_future(_feed(process, message.payload))
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await _read_bounded(process)
                code = await process.wait()
        except TimeoutError:
            return b"", f"no answer within {self._timeout_s:g} s"
        except BadRequestError as error:
            return b"", str(error)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await _end(process)
        return (answer, "") if code == 0 else (b"", f"exit code {code}")


async def _feed(process: asyncio.subprocess.Process, payload: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(payload)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # A command need not read its input.
    finally:
        # Not `wait_closed`: it never returns when the command ended before its pipe was closed.
        process.stdin.close()


async def _read_bounded(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    parts = bytearray()
    while data := await process.stdout.read(64 * 1024):
        parts += data
        if len(parts) > ANSWER_BYTES_MAX:
            raise BadRequestError(f"answer longer than {ANSWER_BYTES_MAX} B")
    return bytes(parts)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the command and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    await process.wait()
