"""The examples in docstrings run, and print what they say. Documentation that can fail is true.

An example is a `>>>` block; it may `await` at its top level. In scope are the names of its module,
`ister`, `url` (a broker of its own), and, asynchronous or blocking as the module is, a connected
`client`, an open `producer` for `/default/orders`, and `msg`, a message of a subscription to the
stream `/default/jobs`. There is an empty stream `/default/out`, and a `timeline` of the group
`shop` on `/default/reminders`, with a message `r-0` that is due.
"""

import ast
import asyncio
import builtins
import doctest
import importlib
import inspect
import io
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import pytest

import ister
import ister.testing
from ister import sync
from ister.testing import ThreadedBroker

BLOCKING = ("ister.sync", "ister.client.sync")
TOPIC = "/default/orders"
JOBS = "/default/jobs"
OUT = "/default/out"
REMINDERS = "/default/reminders"
WAIT_S = 10.0


@dataclass(frozen=True)
class Documented:
    """Something with examples in its docstring."""

    name: str
    module: str
    examples: tuple[doctest.Example, ...]

    @property
    def blocking(self) -> bool:
        return self.module.startswith(BLOCKING)


def all_documented() -> list[Documented]:
    """Every example of the package, each once, by the name of what it documents."""
    found: dict[str, Documented] = {}
    for module in modules():
        for name, docstring in docstrings(module):
            examples = tuple(doctest.DocTestParser().get_examples(docstring))
            if examples:
                found[name] = Documented(name, module.__name__, examples)
    return list(found.values())


def modules() -> Iterator[ModuleType]:
    yield ister
    for info in pkgutil.walk_packages(ister.__path__, "ister."):
        if info.name.rpartition(".")[2] != "__main__":
            yield importlib.import_module(info.name)


def docstrings(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Names and docstrings of a module and what is defined in it."""
    yield module.__name__, inspect.getdoc(module) or ""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        yield f"{module.__name__}.{name}", getattr(value, "__doc__", None) or ""
        if inspect.isclass(value):
            for inner, method in vars(value).items():
                # A method made from an asynchronous one carries its docstring; once is enough.
                if getattr(method, "__module__", module.__name__) == module.__name__:
                    doc = getattr(method, "__doc__", None) or ""
                    yield f"{module.__name__}.{name}.{inner}", doc


def compiled(source: str) -> CodeType:
    """Compile an example so that expressions print their value, wherever they stand.

    A prompt does that at the top level only; examples mostly stand inside a `with`.
    """
    tree = Printing().visit(ast.parse(source))
    ast.fix_missing_locations(tree)
    code: CodeType = compile(tree, "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


class Printing(ast.NodeTransformer):
    """Turns `f(x)` on a line of its own into `__show__(f(x))`."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        show = ast.Name(id="__show__", ctx=ast.Load())
        return ast.Expr(ast.Call(func=show, args=[node.value], keywords=[]))


def show(value: object) -> None:
    if value is not None:
        builtins.print(repr(value))


async def run_example(example: doctest.Example, scope: dict[str, Any]) -> str:
    """Run one example and return what it printed."""
    output = io.StringIO()
    with redirect_stdout(output):
        try:
            result = eval(compiled(example.source), scope)  # noqa: S307 - our own examples
            if inspect.iscoroutine(result):
                await result
        except BaseException as error:  # an example may show any
            if "".join(traceback.format_exception_only(error)) != example.exc_msg:
                raise
        else:
            assert example.exc_msg is None, f"{example.source} raises nothing"
    return output.getvalue()


async def run_all(documented: Documented, scope: dict[str, Any]) -> None:
    checker = doctest.OutputChecker()
    for example in documented.examples:
        got = await run_example(example, scope)
        if example.exc_msg is None and not checker.check_output(
            example.want, got, doctest.ELLIPSIS
        ):
            difference = checker.output_difference(example, got, doctest.ELLIPSIS)
            pytest.fail(f"{documented.name}:\n{example.source}\n{difference}")


@pytest.mark.parametrize("documented", all_documented(), ids=lambda documented: documented.name)
def test_the_example_of(documented: Documented) -> None:
    with ThreadedBroker() as broker:
        scope = vars(sys.modules[documented.module]) | {
            "ister": ister,
            "url": broker.url,
            "__show__": show,
        }
        if documented.blocking:
            run_blocking(documented, scope)
        else:
            asyncio.run(run_async(documented, scope))


async def run_async(documented: Documented, scope: dict[str, Any]) -> None:
    async with ister.connect(scope["url"]) as client:
        for topic in (JOBS, OUT):
            await client.create_topic(topic, kind="stream")
        async with client.producer(JOBS) as writer:
            await writer.send(b"job")
        async with (
            client.producer(TOPIC) as producer,
            client.subscribe(JOBS, "docs", start="earliest") as sub,
        ):
            msg = await sub.receive(timeout=WAIT_S)
            await client.create_topic(REMINDERS, kind="timeline")
            timeline = client.timeline(REMINDERS, group="shop")
            await timeline.put(b"now", after=0.0, id="r-0")
            names = {"client": client, "producer": producer, "msg": msg, "timeline": timeline}
            await run_all(documented, scope | names)


def run_blocking(documented: Documented, scope: dict[str, Any]) -> None:
    with sync.connect(scope["url"]) as client:
        for topic in (JOBS, OUT):
            client.create_topic(topic, kind="stream")
        with client.producer(JOBS) as writer:
            writer.send(b"job")
        with (
            client.producer(TOPIC) as producer,
            client.subscribe(JOBS, "docs", start="earliest") as sub,
        ):
            msg = sub.receive(timeout=WAIT_S)
            client.create_topic(REMINDERS, kind="timeline")
            timeline = client.timeline(REMINDERS, group="shop")
            timeline.put(b"now", after=0.0, id="r-0")
            names = {"client": client, "producer": producer, "msg": msg, "timeline": timeline}
            asyncio.run(run_all(documented, scope | names))


def test_the_main_entrances_have_examples() -> None:
    names = {documented.name for documented in all_documented()}

    assert names >= {
        "ister",
        "ister.sync",
        "ister.client.aio.connecting.connect",
        "ister.client.aio.producer.Producer",
        "ister.client.aio.reader.Reader",
        "ister.client.aio.subscription.Subscription",
        "ister.client.aio.transaction.Transaction",
        "ister.client.sync.client.connect",
        "ister.client.sync.producer.Producer",
        "ister.client.sync.subscription.Subscription",
        "ister.testing.memory.MemoryBroker",
        "ister.testing.threaded.ThreadedBroker",
        "ister.testing.clock.VirtualClock",
    }


RAISES = "Traceback (most recent call last):\nValueError: 3"


@pytest.mark.parametrize(
    ("example", "want"),
    [
        ("1 + 1", "3"),
        ("await ister.connect(url).nothing()", "3"),
        ("print(2)", "3"),
        ("int(2)", RAISES),
        ("{}['a']", RAISES),
    ],
)
def test_a_wrong_example_is_caught(example: str, want: str) -> None:
    parsed = doctest.DocTestParser().get_examples(f">>> {example}\n{want}\n")

    with pytest.raises((pytest.fail.Exception, AttributeError, AssertionError, KeyError)):
        asyncio.run(
            run_all(
                Documented("x", "x", tuple(parsed)),
                {"ister": ister, "url": "ister://127.0.0.1:1", "__show__": show},
            )
        )
