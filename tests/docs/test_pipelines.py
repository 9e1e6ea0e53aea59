"""The page on pipelines has every key, template, metric and option; its examples are right."""

import ast
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

from ister.cli.app import make_app
from ister.spark.pipelines import TEMPLATES, Pipeline
from ister.spark.pipelines.config.elements import DEDUPLICATE_KEYS, WATERMARK_KEYS
from ister.spark.pipelines.config.pipeline import PIPELINE_KEYS
from ister.spark.pipelines.config.sinks import SINK_KEYS
from ister.spark.pipelines.config.sources import SOURCE_KEYS, TABLE_KEYS
from ister.spark.pipelines.config.steps import STEP_KEYS
from ister.spark.pipelines.loading import read_file
from ister.spark.pipelines.runtime.metrics import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
PARTS = {
    "The pipeline": PIPELINE_KEYS,
    "A source": SOURCE_KEYS,
    "A table": TABLE_KEYS,
    "A step": STEP_KEYS,
    "A sink": SINK_KEYS,
}


def section(name: str) -> str:
    return re.split(r"^#+ ", PAGE.split(f"# {name}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("part", PARTS)
def test_the_page_has_every_key_of_a_part_and_no_other(part: str) -> None:
    assert first_cells(section(part)) == set(PARTS[part])


def test_the_page_has_the_keys_of_watermarks_and_duplicates() -> None:
    text = section("A source")

    assert all(f"`{key}`" in text for key in (*WATERMARK_KEYS, *DEDUPLICATE_KEYS))


def test_the_page_has_every_template_with_what_it_shows() -> None:
    assert all(f"| `{name}` | {text} |" in PAGE for name, text in TEMPLATES.items())


def test_the_page_has_every_metric_with_what_it_is() -> None:
    for name, text in METRICS.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        assert f"| `{name}` | {kind} | {text} |" in PAGE


def test_the_page_has_every_option_of_run() -> None:
    group = typer.main.get_command(make_app(["pipeline"])).commands["pipeline"]  # type: ignore[attr-defined]
    words = {word for one in group.commands["run"].params for word in one.opts}
    named = {cell.split()[0] for cell in first_cells(section("Running"))}

    # `--restart` is how it is anyway; the page has its opposite.
    assert {word for word in words if word.startswith("--")} - {"--restart"} <= named


@pytest.mark.parametrize("text", blocks("yaml"), ids=lambda text: text.split()[1])
def test_every_pipeline_of_the_page_is_right(tmp_path: Path, text: str) -> None:
    (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "regions.csv").write_text("region,country\n", encoding="utf-8")
    (tmp_path / "ister.token").write_text("token\n", encoding="utf-8")

    assert read_file(tmp_path / "pipeline.yaml", environment={}).remarks == ()


@pytest.mark.parametrize("text", [one for one in blocks("python") if "@pipeline" in one])
def test_every_pipeline_in_python_of_the_page_is_right(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    module = ModuleType("of_the_page")
    monkeypatch.setitem(sys.modules, "of_the_page", module)
    exec(compile(text, "<pipelines.md>", "exec"), vars(module))  # noqa: S102 - our own page

    [found] = [one for one in vars(module).values() if isinstance(one, Pipeline)]
    assert found.read().remarks == ()


def test_all_python_of_the_page_is_python() -> None:
    for text in blocks("python"):
        ast.parse(text)
