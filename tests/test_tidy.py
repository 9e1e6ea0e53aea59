"""The house rules no linter knows.

A rule is a function over one file that yields its offences, each as `path:line: what, and the way
out`. `BAD_EXAMPLES` holds a file for every rule that it must catch: a rule that cannot fail
checks nothing.
"""

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("src", "tests", "bench", "examples")

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc"}
EMPTY_ENDINGS = ("Manager", "Handler", "Processor", "Service", "Data", "Info")


@dataclass(frozen=True)
class Module:
    """A Python file of the checkout at `root`."""

    root: Path
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The path from the root: `("src", "ister", "codec", "batch.py")`."""
        return self.path.relative_to(self.root).parts

    @property
    def is_source(self) -> bool:
        return self.parts[:2] == ("src", "ister")

    def offence(self, line: int, text: str) -> str:
        return f"{'/'.join(self.parts)}:{line}: {text}"


Rule = Callable[[Module], Iterator[str]]


# The rules for one module.


def long_modules(module: Module) -> Iterator[str]:
    count = module.text.count("\n")
    if count > MODULE_LINES_MAX:
        yield module.offence(
            MODULE_LINES_MAX,
            f"the module has {count} lines, the limit is {MODULE_LINES_MAX}: "
            "split it where the ideas part",
        )


def long_functions(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                yield module.offence(
                    node.lineno,
                    f"`{node.name}` has {count} lines, the limit is {FUNCTION_LINES_MAX}: "
                    "split it where the ideas part",
                )


def missing_docstrings(module: Module) -> Iterator[str]:
    # An empty `__init__.py` only marks a folder of tests; in the package it introduces the folder.
    if not module.tree.body and not module.is_source:
        return
    if not ast.get_docstring(module.tree):
        yield module.offence(1, "no docstring: open with the module's job and what is always true")


def empty_names(module: Module) -> Iterator[str]:
    for part in module.parts[1:]:
        words = part.removesuffix(".py").strip("_").split("_")
        if EMPTY_NAMES & {words[0], words[-1]}:
            yield module.offence(
                1, f"`{part}` says nothing: name the idea; without one it has no home yet"
            )


def empty_class_names(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_ENDINGS):
            yield module.offence(
                node.lineno,
                f"`{node.name}` ends in a word without meaning "
                f"({', '.join(EMPTY_ENDINGS)}): name the thing, as in Lease, Cursor, Window",
            )


def logic_in_init(module: Module) -> Iterator[str]:
    if not module.is_source or module.path.name != "__init__.py":
        return
    # The package itself may also tell its version, and load its parts when they are asked for.
    # So may `spark`, which every worker of Spark imports.
    root = {"__all__", "__version__", "__getattr__", "__dir__"}
    is_root = len(module.parts) == 3 or module.parts[2:] == ("spark", "__init__.py")
    names = root if is_root else {"__all__"}
    for slot, node in enumerate(module.tree.body):
        is_docstring = slot == 0 and ast.get_docstring(module.tree) is not None
        name = node.name if isinstance(node, ast.FunctionDef) else assigned_name(node)
        if not (is_docstring or is_import(node) or name in names):
            yield module.offence(
                node.lineno,
                f"an `__init__.py` holds only a docstring, imports and {', '.join(sorted(names))}: "
                "move this to a module",
            )


# A list of words, made to be imported by name: passing each through `__init__.py` would only
# repeat the list.
OPEN_MODULES = {"ister.base.limits"}


def side_doors(module: Module) -> Iterator[str]:
    """Imports of a module inside another folder, past that folder's `__init__.py`."""
    if not module.is_source:
        return
    home = module.parts[2].removesuffix(".py")
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for name in set(imported_modules(node)) - OPEN_MODULES:
            match name.split("."):
                case ["ister", folder, *inner] if folder != home and is_module(module.root, name):
                    yield module.offence(
                        node.lineno,
                        f"`{name}` is inside another folder: import `{inner[-1]}`'s names from "
                        f"`{name.rpartition('.')[0]}`, and export them there",
                    )


# Who may print what others have written: these show control characters, and send none.
PRINTERS = {("cli", "console", "terminal.py"), ("telemetry", "console.py"), ("telemetry", "log.py")}
PRINTING = re.compile(
    r"(?<![.\w])print\(|\b(?:typer|click)\.(?:echo|secho|confirm|prompt)\b|\bos\.write\("
    r"|\bsys\.(?:__)?std(?:out|err)(?:__)?\b(?!\.isatty\(\))"
)
CONSOLES = re.compile(r"^(?:from rich import|import rich\b|from rich\.console import Console)")


def printing_around(module: Module) -> Iterator[str]:
    """A terminal obeys what it is sent: the command line prints in one place."""
    if not module.is_source or module.parts[2:] in PRINTERS:
        return
    is_command = module.parts[2:3] == ("cli",)
    for number, line in enumerate(module.text.splitlines(), 1):
        code = line.strip()
        if is_command and PRINTING.search(code) and not code.startswith(("#", "async def", "def")):
            yield module.offence(number, "prints by itself: use `ister.cli.console.terminal`")
        if CONSOLES.match(code):
            yield module.offence(number, "makes a console: use `ister.telemetry.make_console`")


def loose_todos(module: Module) -> Iterator[str]:
    if not re.search(r"TODO|FIXME|XXX", module.text):
        return  # Almost every module: splitting all of them into tokens takes a second.
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT and re.search(
            r"\b(TODO(?!\(#\d+\))|FIXME|XXX)\b", token.string
        ):
            yield module.offence(
                token.start[0], "a TODO carries its issue: `TODO(#123): when, and why`"
            )


# The rules for one file of any kind.

MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|Users|root)/[\w.]+|\b[A-Z]:\\Users\\")
REGISTRY = re.compile(
    r"files\.pythonhosted\.org|pypi\.org/simple"
    r"|--(?:extra-)?index[-]url|--find[-]links|--trusted[-]host|@ file[:]//"
)


def machine_paths(root: Path, path: Path) -> Iterator[str]:
    """Paths and registries of one machine, which another does not have."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # A golden file of bytes.
    # A checkout straight under `/` has a name too common to look for, such as `/src`.
    own = re.escape(str(root)) + r"\b" if len(root.parts) > 2 else r"(?!)"
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern in (MACHINE_PATH, REGISTRY, re.compile(own)):
            if found := pattern.search(line):
                yield (
                    f"{path.relative_to(root).as_posix()}:{number}: `{found.group()}` is of one "
                    "machine: use a path from the root of the checkout, and pip's own settings"
                )


def loose_pins(root: Path, path: Path) -> Iterator[str]:
    """Lines of a constraints file that leave the version open."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line and not re.fullmatch(r"#.*|[\w.-]+==[\w.!+]+( ; .+)?", line):
            yield (
                f"{path.relative_to(root).as_posix()}:{number}: `{line}` is no exact pin: "
                "write `name==version`"
            )


def undocumented_errors(errors: Path, docs: Path) -> Iterator[str]:
    """Leaves in the folder `errors` without a number of their own or a line in `docs`."""
    lines = docs.read_text(encoding="utf-8").splitlines() if docs.exists() else []
    leaves = list(error_leaves(errors))
    uses = Counter(code for _, code, _ in leaves)
    for name, code, place in leaves:
        where = f"{place}: `{name}`"
        if code is None:
            yield f"{where} has no number: give it `code: ClassVar[int]`, one never used before"
            continue
        if uses[code] > 1:
            yield f"{where} shares number {code}: take the next free one"
        entry = re.compile(rf"\b{name}\b.*\b{code}\b|\b{code}\b.*\b{name}\b")
        if not any(entry.search(text) for text in lines):
            yield f"{where} is not documented: add a line with `{name}` and {code} to {docs.name}"


def unpinned_dependencies(pyproject: Path, constraints: Path) -> Iterator[str]:
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(one for extra in extras for one in extra)]
    pinned = {
        normal_name(line.partition("==")[0])
        for line in constraints.read_text(encoding="utf-8").splitlines()
    }
    for requirement in wanted:
        if normal_name(re.split(r"[^\w.-]", requirement)[0]) not in pinned:
            yield f"{pyproject.name}: `{requirement}` has no pin in {constraints.name}: add one"


# What the rules are made of.


def is_import(node: ast.stmt) -> bool:
    """Whether a statement only imports, be it for type checkers alone."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(is_import(inner) for inner in body)
        case _:
            return isinstance(node, ast.Import | ast.ImportFrom)


def assigned_name(node: ast.stmt) -> str | None:
    """Return `x` for `x = …`, `x += …` and `x: T = …`."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AugAssign(target=ast.Name(id=name))
            | ast.AnnAssign(target=ast.Name(id=name))
        ):
            return name
        case _:
            return None


def imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the dotted names an import may load; relative ones stay inside their folder."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(name), level=0, names=names):
            return [name, *(f"{name}.{alias.name}" for alias in names)]
        case _:
            return []


def is_module(root: Path, name: str) -> bool:
    """Tell whether `name` is a file inside a folder of the package, and not a folder itself."""
    parts = name.split(".")
    return len(parts) > 2 and root.joinpath("src", *parts).with_suffix(".py").is_file()


def error_leaves(folder: Path) -> Iterator[tuple[str, int | None, str]]:
    """Yield name, number and place of each class below the bases, which derive from the root."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if bases and not bases & {"Exception", "IsterError"}:
                yield node.name, error_code(node), f"{path.name}:{node.lineno}"


def error_code(node: ast.ClassDef) -> int | None:
    for statement in node.body:
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant(value=int(code)))
                | ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=int(code)))
            ):
                return code
    return None


def normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def modules() -> list[Module]:
    return [
        Module(ROOT, path)
        for folder in CODE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def tracked_files() -> list[Path]:
    """Return what git tracks or is about to track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


def report(offences: list[str]) -> str:
    return "\n".join(["", *offences])


# The tests.

MODULE_RULES: list[Rule] = [
    long_modules,
    long_functions,
    missing_docstrings,
    empty_names,
    empty_class_names,
    logic_in_init,
    side_doors,
    printing_around,
    loose_todos,
]


@pytest.fixture(scope="module")
def all_modules() -> list[Module]:
    return modules()


@pytest.mark.parametrize("rule", MODULE_RULES, ids=lambda rule: rule.__name__)
def test_no_module_breaks_the_rule_on(rule: Rule, all_modules: list[Module]) -> None:
    offences = [offence for module in all_modules for offence in rule(module)]

    assert not offences, report(offences)


def test_no_tracked_file_holds_a_path_or_registry_of_one_machine() -> None:
    offences = [offence for path in tracked_files() for offence in machine_paths(ROOT, path)]

    assert not offences, report(offences)


def test_every_error_has_its_own_number_and_a_docs_entry() -> None:
    errors = ROOT / "src/ister/base/errors"
    offences = list(undocumented_errors(errors, ROOT / "docs/errors.md"))

    assert any(error_leaves(errors)), "no errors found: have they moved?"
    assert not offences, report(offences)


def test_every_dependency_is_pinned_exactly() -> None:
    constraints = ROOT / "constraints.txt"
    offences = [
        *loose_pins(ROOT, constraints),
        *unpinned_dependencies(ROOT / "pyproject.toml", constraints),
    ]

    assert not offences, report(offences)


# Each rule catches what it is for.

BAD_EXAMPLES: list[tuple[Rule, str, str]] = [
    (long_modules, "src/ister/codec/batch.py", "\n" * (MODULE_LINES_MAX + 1)),
    (long_functions, "tests/a.py", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (long_functions, "bench/a.py", "async def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (missing_docstrings, "src/ister/codec/__init__.py", ""),
    (missing_docstrings, "tests/a.py", "x = 1\n"),
    (empty_names, "src/ister/codec/utils.py", ""),
    (empty_names, "src/ister/codec/_byte_helpers.py", ""),
    (empty_names, "src/ister/common/batch.py", ""),
    (empty_class_names, "src/ister/codec/batch.py", "class BatchManager: ...\n"),
    (logic_in_init, "src/ister/codec/__init__.py", '"""Doc."""\nX = 1\n'),
    (logic_in_init, "src/ister/codec/__init__.py", '"""Doc."""\n__version__ = "1"\n'),
    (logic_in_init, "src/ister/__init__.py", '"""Doc."""\ndef f(): ...\n'),
    (logic_in_init, "src/ister/codec/__init__.py", '"""Doc."""\ndef __getattr__(): ...\n'),
    (logic_in_init, "src/ister/codec/__init__.py", '"""Doc."""\nif TYPE_CHECKING:\n    X = 1\n'),
    (side_doors, "src/ister/wire/a.py", "from ister.codec.batch import Batch\n"),
    (side_doors, "src/ister/wire/a.py", "from ister.codec import batch\n"),
    (side_doors, "src/ister/wire/a.py", "import ister.codec.batch\n"),
    (printing_around, "src/ister/cli/a.py", "def f() -> None:\n    print(1)\n"),
    (printing_around, "src/ister/cli/a.py", "sys.stdout.write(text)\n"),
    (printing_around, "src/ister/cli/a.py", "sys.stderr.buffer.write(text)\n"),
    (printing_around, "src/ister/cli/a.py", "typer.echo(text)\n"),
    (printing_around, "src/ister/spark/a.py", "def f():\n    from rich.console import Console\n"),
    (loose_todos, "src/ister/wire/a.py", "x = 1  # TODO: later\n"),
    (loose_todos, "src/ister/wire/a.py", "# FIXME(#1)\n"),
]

GOOD_EXAMPLES: list[tuple[Rule, str, str]] = [
    (long_modules, "src/ister/codec/batch.py", "\n" * MODULE_LINES_MAX),
    (long_functions, "tests/a.py", "def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)),
    (missing_docstrings, "tests/__init__.py", ""),
    (empty_names, "src/ister/codec/commonality.py", ""),
    (empty_class_names, "src/ister/codec/batch.py", "class Metadata: ...\n"),
    (logic_in_init, "src/ister/codec/__init__.py", '"""Doc."""\nimport os\n__all__ = ["os"]\n'),
    (logic_in_init, "src/ister/__init__.py", '"""Doc."""\n__version__ = "1"\n'),
    (logic_in_init, "src/ister/__init__.py", '"""Doc."""\ndef __getattr__(): ...\n'),
    (
        logic_in_init,
        "src/ister/codec/__init__.py",
        '"""Doc."""\nif TYPE_CHECKING:\n    import os\n',
    ),
    (side_doors, "src/ister/codec/a.py", "from ister.codec.batch import Batch\n"),
    (side_doors, "src/ister/sync.py", "from ister.client.sync import connect\n"),
    (side_doors, "src/ister/wire/a.py", "from ister.base.limits import KIB\n"),
    (printing_around, "src/ister/cli/a.py", "if sys.stderr.isatty():\n    say(text)\n"),
    (printing_around, "src/ister/cli/a.py", "async def print(self): ...\n"),
    (printing_around, "src/ister/cli/console/terminal.py", "print(text)\n"),
    (loose_todos, "src/ister/wire/a.py", "# TODO(#12): drop with protocol 1\n"),
]


def module_at(root: Path, name: str, source: str) -> Module:
    """Write a module into a small package with the folders the examples import from."""
    for neighbour in ("base/limits.py", "codec/batch.py", "client/sync/__init__.py"):
        path = root / "src/ister" / neighbour
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return Module(root, path)


@pytest.mark.parametrize(("rule", "name", "source"), BAD_EXAMPLES)
def test_a_module_that_breaks_a_rule_is_caught(
    rule: Rule, name: str, source: str, tmp_path: Path
) -> None:
    assert list(rule(module_at(tmp_path, name, source)))


@pytest.mark.parametrize(("rule", "name", "source"), GOOD_EXAMPLES)
def test_a_module_at_the_edge_of_a_rule_passes(
    rule: Rule, name: str, source: str, tmp_path: Path
) -> None:
    assert not list(rule(module_at(tmp_path, name, source)))


@pytest.mark.parametrize(
    "line",
    ["see {root}/notes", "/" + "home/ann/notes", "--index" + "-url x", "a @ file" + ":///a.whl"],
)
def test_a_file_with_a_path_or_registry_of_one_machine_is_caught(line: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text(line.format(root=tmp_path), encoding="utf-8")

    assert list(machine_paths(tmp_path, path))


@pytest.mark.parametrize("line", ["topic /default/home/x", "tests/home/data", "http://a/home/b"])
def test_a_topic_or_relative_path_is_no_machine_path(line: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text(line, encoding="utf-8")

    assert not list(machine_paths(tmp_path, path))


@pytest.mark.parametrize("line", ["rich>=15", "rich", "rich==15.*", "rich @ https://a/b.whl"])
def test_an_open_version_is_caught(line: str, tmp_path: Path) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text(line, encoding="utf-8")

    assert list(loose_pins(tmp_path, path))


def test_a_dependency_without_a_pin_is_caught(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        '[project]\ndependencies = ["a_b>=1"]\noptional-dependencies.x = ["c>=2; x == \'y\'"]\n',
        encoding="utf-8",
    )
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("A-b==1\n", encoding="utf-8")

    assert len(list(unpinned_dependencies(pyproject, constraints))) == 1


ERRORS = """
class IsterError(Exception): code: ClassVar[int] = 0
class InvalidError(IsterError): exit_code: ClassVar[int] = 64
class LargeError(InvalidError): code: ClassVar[int] = {first}
class SmallError(InvalidError): {second}
"""


@pytest.mark.parametrize(
    ("first", "second", "docs", "count"),
    [
        (1001, "code: ClassVar[int] = 1002", "1001 LargeError\n1002 SmallError\n", 0),
        (1001, "code: ClassVar[int] = 1001", "1001 LargeError\n1001 SmallError\n", 2),
        (1001, "pass", "1001 LargeError\n", 1),
        (1001, "code: ClassVar[int] = 1002", "1001 LargeError\n1003 SmallError\n", 1),
    ],
    ids=["good", "shared number", "no number", "wrong number in the docs"],
)
def test_an_error_without_its_own_number_or_docs_entry_is_caught(
    first: int, second: str, docs: str, count: int, tmp_path: Path
) -> None:
    source = ERRORS.format(first=first, second=second)
    (tmp_path / "errors.py").write_text(source, encoding="utf-8")
    docs_path = tmp_path / "errors.md"
    docs_path.write_text(docs, encoding="utf-8")

    assert len(list(undocumented_errors(tmp_path, docs_path))) == count
