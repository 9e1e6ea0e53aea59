"""A decorated function is a pipeline like one of a file, and is found by its file or module."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ister.base.errors import BadRequestError
from ister.spark import pipeline
from ister.spark.pipelines.analysis.functions import call_function, import_beside
from ister.spark.pipelines.config.definition import PythonStep, to_json_values
from ister.spark.pipelines.entry import read_pipeline
from ister.spark.pipelines.python import Pipeline

ORDERS = {
    "topic": "/default/orders",
    "format": "json",
    "schema": "order_id string, amount double",
}
TO_A = {"name": "a", "topic": "/default/a"}
TO_B = {"name": "b", "topic": "/default/b"}
MODULE = """\
from ister.spark import pipeline

@pipeline(sources={{"orders": "/default/orders"}}, sinks=[{{"topic": "/default/{0}"}}])
def {0}(orders):
    return orders
"""


class Frame:
    """What a function returns, as far as anybody asks."""

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 (Spark's name)
        raise AssertionError("nobody registers views here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder one works in; what was imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def made(*sinks: dict[str, str]) -> Pipeline:
    @pipeline(sources={"orders": ORDERS}, sinks=sinks)
    def scores(orders: object) -> object:
        return orders

    return scores


def step_of(decorated: Pipeline) -> PythonStep:
    [step] = decorated.definition().steps
    assert isinstance(step, PythonStep)
    return step


def test_the_keys_of_a_decorator_are_those_of_a_file() -> None:
    definition = made(TO_A, TO_B).definition()

    assert definition.name == "scores"
    assert [source.topics for source in definition.sources] == [("/default/orders",)]
    assert [sink.view for sink in definition.sinks] == ["a", "b"]
    [step] = definition.steps
    assert isinstance(step, PythonStep)
    assert (step.inputs, step.outputs) == (("orders",), ("a", "b"))
    assert (
        to_json_values(step.function)
        == "tests.unit.spark.pipelines.test_python:made.<locals>.scores"
    )


def test_a_decorated_function_can_still_be_called() -> None:
    assert made(TO_A)("a frame") == "a frame"


def test_sinks_without_a_name_take_the_one_frame_there_is() -> None:
    step = step_of(made({"topic": "/default/a"}, {"console": "true"}))

    assert step.outputs == ("scores",)


def test_a_sink_may_take_a_source_instead() -> None:
    definition = made({"topic": "/default/a"}, {"topic": "/default/b", "from": "orders"})

    assert [sink.view for sink in definition.definition().sinks] == ["scores", "orders"]


def test_mistakes_of_a_decorator_have_its_line() -> None:
    @pipeline(sources={"orders": ORDERS | {"formt": "json"}}, sinks=[TO_A], trigger="often")
    def wrong(payments: object) -> object:
        return payments

    found = [str(one) for one in wrong.read().remarks]
    code = wrong.function.__code__
    assert len(found) == 3
    assert all(f"test_python.py:{code.co_firstlineno}: " in one for one in found)
    assert any("there is no view `payments`" in one for one in found)


def test_one_frame_stands_for_every_sink() -> None:
    frame = Frame()

    assert call_function(step_of(made(TO_A, TO_B)), {"orders": frame}) == {"a": frame, "b": frame}


def test_a_dict_has_a_frame_for_each_sink() -> None:
    one, other = Frame(), Frame()
    step = step_of(made(TO_A, TO_B))

    assert call_function(step, {"orders": {"b": other, "a": one}}) == {"a": one, "b": other}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"a": Frame()}, "returned `a`, and its sinks are `a`, `b`"),
        ({"a": Frame(), "b": Frame(), "c": Frame()}, "returned `a`, `b`, `c`"),
        ({}, "returned nothing"),
        (None, "is a NoneType: return a DataFrame, or a dict of them by sink"),
        ({"a": Frame(), "b": 5}, "`b` of `scores` is a int"),
    ],
)
def test_anything_else_that_a_function_returns_is_refused(result: object, said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        call_function(step_of(made(TO_A, TO_B)), {"orders": result})


def test_the_function_of_a_file_is_imported_from_beside_it(folder: Path) -> None:
    (folder / "beside_one.py").write_text("def score(a, b): return b\n", encoding="utf-8")
    step = PythonStep(
        name="s",
        function="beside_one:score",
        inputs=("x", "y"),
        outputs=("s",),
        folder=str(folder),
    )
    frame = Frame()

    assert call_function(step, {"x": Frame(), "y": frame}) == {"s": frame}


def test_a_pipeline_is_found_by_its_file(folder: Path) -> None:
    (folder / "by_file.py").write_text(MODULE.format("one"), encoding="utf-8")

    definition = read_pipeline("by_file.py").get()
    assert (definition.name, definition.file) == ("one", "by_file.py")
    assert definition.checkpoint == str(folder / ".ister" / "one")


def test_a_pipeline_is_found_by_module_and_function(folder: Path) -> None:
    (folder / "by_module.py").write_text(MODULE.format("one") + MODULE.format("two"), "utf-8")

    assert read_pipeline("by_module:two").get().name == "two"
    assert read_pipeline("by_module.py:one").get().name == "one"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("two_in_it.py", "two_in_it.py: has several pipelines, say which: two_in_it.py:one, "),
        ("two_in_it.py:tow", "`tow` is not there, did you mean `two`?"),
        ("two_in_it:pipeline", "`pipeline` is not decorated with `@ister.spark.pipeline`"),
        ("none_in_it.py", "none_in_it.py: has no pipeline: decorate a function"),
        ("nowhere.py", "nowhere.py: there is no such file"),
        ("nowhere:one", "nowhere: there is no such module"),
        ("raises.py", "raises.py:2: importing it raised ZeroDivisionError: division by zero"),
        ("imports.py", "imports.py:1: importing it raised ModuleNotFoundError: No module named"),
        ("no_python.py", "no_python.py:1: "),
        ("json.py", "another module is named `json`"),
        ("orders", "orders: is no pipeline: give a file that ends in .yaml, .toml or .py"),
    ],
)
def test_what_is_no_pipeline_is_told(folder: Path, target: str, said: str) -> None:
    both = MODULE.format("one") + MODULE.format("two")
    (folder / "two_in_it.py").write_text(both, encoding="utf-8")
    (folder / "none_in_it.py").write_text("x = 1\n", encoding="utf-8")
    (folder / "raises.py").write_text("x = 1\nx / 0\n", encoding="utf-8")
    (folder / "imports.py").write_text("import no_such_module_here\n", encoding="utf-8")
    (folder / "no_python.py").write_text("def (:\n", encoding="utf-8")
    (folder / "json.py").write_text(both, encoding="utf-8")

    [remark] = read_pipeline(target).remarks
    assert said in str(remark)


def test_two_pipelines_of_a_process_may_have_modules_of_one_name(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "rules_of_one_name.py").write_text(f"NUMBER = {number}\n")

    found = [import_beside("rules_of_one_name", str(tmp_path / number)).NUMBER for number in "1221"]

    assert found == [1, 2, 2, 1]
