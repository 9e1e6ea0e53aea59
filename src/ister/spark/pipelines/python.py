"""Pipelines in Python: a decorated function, and finding one by `module:function` or its file.

The arguments of the decorator are the keys of a pipeline file, and are checked by the same rules:
mistakes carry the line of the decorator. Nothing is checked when the function is decorated, so
that a module with a mistake in it can still be imported.
"""

import inspect
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ister.spark.pipelines.analysis import import_beside
from ister.spark.pipelines.config import (
    Definition,
    FileLine,
    MalformedError,
    Notes,
    Remark,
    nearest,
    node_of_arguments,
)
from ister.spark.pipelines.loading import CheckedPipeline, check_pipeline


class Pipeline:
    """A decorated function. It can be called with DataFrames as before, and read as a pipeline."""

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, object]) -> None:
        self.function = function
        self.arguments = arguments
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __call__(self, *frames: Any, **named: Any) -> Any:
        """Call the function as it is, for example in a test."""
        return self.function(*frames, **named)

    def read(
        self,
        *,
        chosen: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CheckedPipeline:
        """Check the pipeline."""
        code = inspect.unwrap(self.function).__code__
        path = Path(code.co_filename)
        is_file = path.is_file()
        origin = FileLine(_display_path(path) if is_file else self.__module__, code.co_firstlineno)
        notes = Notes(
            file=origin.file,
            folder=str(path.absolute().parent if is_file else Path.cwd()),
            chosen=chosen or {},
            environment=os.environ if environment is None else environment,
        )
        inputs = tuple(inspect.signature(self.function).parameters)
        given = {key: value for key, value in self.arguments.items() if value is not None}
        try:
            node = node_of_arguments(given, origin)
        except MalformedError as error:
            return CheckedPipeline(None, (error.remark,))
        return check_pipeline(node, notes, self.function, inputs)

    def definition(self) -> Definition:
        """Return the pipeline, or raise `ConfigError` with every mistake."""
        return self.read().get()


def pipeline(
    *,
    sources: Mapping[str, object],
    sinks: Sequence[Mapping[str, object]],
    name: str | None = None,
    broker: str | None = None,
    token: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    options: Mapping[str, object] | None = None,
    tables: Mapping[str, object] | None = None,
    steps: Sequence[Mapping[str, object]] | None = None,
    dead_letters: str | None = None,
    trigger: str | None = None,
    checkpoint: str | None = None,
    settings: Mapping[str, object] | None = None,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Make a pipeline of a function.

    The function's parameters are names of sources, tables and steps, and it is given their
    DataFrames. It returns one DataFrame for every sink, or a dict of them by the sinks' names; a
    sink with `from` takes that view instead. Without a `name`, the function's is the pipeline's.
    """

    def decorate(function: Callable[..., Any]) -> Pipeline:
        arguments: dict[str, object] = {
            "name": name or function.__name__.replace("_", "-"),
            "broker": broker,
            "token": token,
            "tls_ca": tls_ca,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "options": options,
            "sources": sources,
            "tables": tables,
            "steps": steps,
            "sinks": sinks,
            "dead_letters": dead_letters,
            "trigger": trigger,
            "checkpoint": checkpoint,
            "settings": settings,
        }
        return Pipeline(function, arguments)

    return decorate


def find_pipeline(target: str) -> Pipeline:
    """Return the pipeline at `file.py`, `file.py:function` or `module:function`.

    Raises `MalformedError` when there is none.
    """
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if not place.endswith(".py") and not name:
        said = "is no pipeline: give a file that ends in .yaml, .toml or .py, or `module:function`"
        raise MalformedError(Remark(FileLine(target), said))
    module = _module(place)
    known = {key: one for key, one in vars(module).items() if isinstance(one, Pipeline)}
    if name:
        if name not in known:
            what = "is not decorated with `@ister.spark.pipeline`"
            if not hasattr(module, name):
                what = f"is not there{nearest(name, sorted(known))}"
            raise MalformedError(Remark(FileLine(place), f"`{name}` {what}"))
        return known[name]
    if len(known) != 1:
        listed = ", ".join(f"{place}:{key}" for key in sorted(known))
        said = f"has several pipelines, say which: {listed}" if known else _NO_PIPELINE
        raise MalformedError(Remark(FileLine(place), said))
    return next(iter(known.values()))


_NO_PIPELINE = "has no pipeline: decorate a function with `@ister.spark.pipeline(...)`"


def _module(place: str) -> ModuleType:
    path = Path(place)
    try:
        if not place.endswith(".py"):
            return import_beside(place, str(Path.cwd()))
        if not path.is_file():
            raise MalformedError(Remark(FileLine(place), "there is no such file"))
        module = import_beside(path.stem, str(path.absolute().parent))
    except MalformedError:
        raise
    except ModuleNotFoundError as error:
        if error.name == place:
            raise MalformedError(Remark(FileLine(place), "there is no such module")) from None
        raise MalformedError(_import_remark(error, place)) from error
    except Exception as error:  # a user's module may raise anything
        raise MalformedError(_import_remark(error, place)) from error
    if Path(module.__file__ or "").resolve() != path.resolve():
        # Another module of that name was imported before: by its name workers would get that.
        said = f"another module is named `{path.stem}` ({module.__file__}): rename the file"
        raise MalformedError(Remark(FileLine(place), said))
    return module


def _import_remark(error: Exception, place: str) -> Remark:
    """Say what a module raised while it was imported, at the line that did."""
    if isinstance(error, SyntaxError):
        return Remark(
            FileLine(_display_path(Path(error.filename or place)), error.lineno or 0), error.msg
        )
    # The frames of ours and of the import system come first, those of the module last.
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    for frame in frames:
        if Path(frame.filename).stem == Path(place).stem.rpartition(".")[2]:
            last = frame
    said = f"importing it raised {type(error).__name__}: {error}"
    return Remark(FileLine(_display_path(Path(last.filename)), last.lineno or 0), said)


def _display_path(path: Path) -> str:
    """Return a path as a user would type it here."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path)
