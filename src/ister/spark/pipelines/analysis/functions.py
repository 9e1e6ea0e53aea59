"""The Python functions of steps: looked at before Spark starts, found and called when it runs."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ister.base.errors import BadRequestError
from ister.spark.pipelines.config import FileLine, PythonStep, Remark, nearest

# A module of functions is a few pages; this is ten times the largest of ours.
MODULE_BYTES_MAX = 1024 * 1024


def call_function(step: PythonStep, frames: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function of a step with its views, and return what it made by view.

    `frames` has a DataFrame for each of `step.inputs`. Raises `BadRequestError` when the function
    cannot be found or returns something else than it should; what it raises itself passes.
    """
    function = step.function if callable(step.function) else _found(step)
    result = function(*(frames[name] for name in step.inputs))
    if isinstance(result, Mapping):
        wanted, given = set(step.outputs), set(result)
        if wanted != given:
            raise BadRequestError(
                f"{step.origin}: `{step.name}` returned {_listed(given)}, "
                f"and its sinks are {_listed(wanted)}"
            )
        made = {name: result[name] for name in step.outputs}
    else:
        made = dict.fromkeys(step.outputs, result)
    for name, frame in made.items():
        if not hasattr(frame, "createOrReplaceTempView"):
            raise BadRequestError(
                f"{step.origin}: `{name}` of `{step.name}` is a {type(frame).__name__}: "
                "return a DataFrame, or a dict of them by sink"
            )
    return made


# Modules that were found beside a pipeline's file, and in which folder.
_beside: dict[str, str] = {}


def import_beside(name: str, folder: str) -> ModuleType:
    """Import a module, one in `folder` before any other. The folder stays on the path.

    The workers of Spark import it again by its name, so they need the folder on their path too.
    """
    if folder:
        sys.path[:] = [folder, *(path for path in sys.path if path != folder)]
        if _beside.get(name, folder) != folder:
            sys.modules.pop(name, None)  # That of another pipeline in this process.
    importlib.invalidate_caches()
    is_new = name not in sys.modules
    module = importlib.import_module(name)
    if is_new and folder and _module_path(name, folder) is not None:
        _beside[name] = folder
    return module


def function_mistakes(step: PythonStep) -> Iterator[Remark]:
    """Yield what is wrong with a step's `module:function`, without importing it."""
    if callable(step.function) or not step.function:
        return
    module, _, name = step.function.partition(":")
    path = _module_path(module, step.folder)
    if path is None:
        if not _is_installed(module):
            said = f"there is no module `{module}`: put `{module}.py` beside the pipeline file"
            yield Remark(step.origin, said)
        return
    try:
        tree = ast.parse(_source(path), filename=str(path))
    except SyntaxError as error:
        yield Remark(FileLine(str(path), error.lineno or 0), f"is no Python: {error.msg}")
        return
    except (OSError, ValueError) as error:
        yield Remark(step.origin, f"`{path.name}` cannot be read: {error}")
        return
    # The walk goes from the outside in; a function inside another hides none of the module.
    known = dict(reversed(list(_names(tree))))
    if name not in known:
        said = f"`{path.name}` has no function `{name}`{nearest(name, sorted(known))}"
        yield Remark(step.origin, said)
        return
    function = known[name]
    if isinstance(function, ast.FunctionDef) and step.inputs:
        yield from _parameter_mistakes(function, step)


def _found(step: PythonStep) -> Any:
    module, _, name = str(step.function).partition(":")
    try:
        found = getattr(import_beside(module, step.folder), name, None)
    except ImportError as error:
        raise BadRequestError(f"{step.origin}: `{module}` cannot be imported: {error}") from error
    if not callable(found):
        raise BadRequestError(f"{step.origin}: `{module}` has no function `{name}`")
    return found


def _module_path(module: str, folder: str) -> Path | None:
    base = Path(folder, *module.split("."))
    for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _is_installed(module: str) -> bool:
    # Only the first part: to look for the rest would import it.
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _source(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MODULE_BYTES_MAX + 1)
    if len(data) > MODULE_BYTES_MAX:
        raise ValueError(f"larger than {MODULE_BYTES_MAX:,} bytes")
    return data


def _names(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that a module has once it is imported, as far as can be seen."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=targets):
                yield from ((one.id, node) for one in targets if isinstance(one, ast.Name))
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((one.asname or one.name, cast(ast.stmt, node)) for one in names)


def _parameter_mistakes(function: ast.FunctionDef, step: PythonStep) -> Iterator[Remark]:
    arguments = function.args
    if function.decorator_list:
        return  # Whatever decorates it may take other parameters.
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    count = len(step.inputs)
    if count < least or (count > most and arguments.vararg is None):
        takes = f"{least}" if least == most else f"{least} to {most}"
        said = f"`{function.name}` takes {takes} DataFrames, and `inputs` names {count}"
        yield Remark(step.origin, said)


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "nothing"
