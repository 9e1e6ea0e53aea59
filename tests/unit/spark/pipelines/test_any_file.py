"""Whatever a pipeline file holds, reading it ends in a definition or in lines that say why not."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.spark.pipelines.config.pipeline import PIPELINE_KEYS
from ister.spark.pipelines.config.sinks import SINK_KEYS
from ister.spark.pipelines.config.sources import SOURCE_KEYS, TABLE_KEYS
from ister.spark.pipelines.config.steps import STEP_KEYS
from ister.spark.pipelines.loading import read_file

WORDS = st.sampled_from(
    [
        "orders", "one", "/default/orders", "/default/*", "json", "append", "5 minutes", "5",
        "a string, at timestamp", "a array<", "SELECT * FROM orders JOIN one", "SELECT (", "x:y",
        "${A", "${A:-b}", "${env:A}", "${file:}", "$${", "available_now", "true", "", "\n", "`",
        "spark.x", "2026-11-15T10:00:00Z", "s3://b/c", "ister://h:1", "64MiB", "..", "é",
    ]
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), WORDS)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(WORDS | st.just("columns"), inner, max_size=3)
    ),
    max_leaves=6,
)
WATERMARKS = st.fixed_dictionaries({}, optional={"column": ANYTHING, "delay": ANYTHING})


def part(keys: tuple[str, ...]) -> st.SearchStrategy[object]:
    """Any value, or a mapping with some of these keys."""
    values = {key: WATERMARKS | ANYTHING if key == "watermark" else ANYTHING for key in keys}
    return st.one_of(st.fixed_dictionaries({}, optional=values), ANYTHING)


def by_name(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.dictionaries(WORDS, inner, max_size=3), ANYTHING)


def listed(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.lists(inner, max_size=3), ANYTHING)


PIPELINES = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(PIPELINE_KEYS, ANYTHING)
    | {
        "sources": by_name(part(SOURCE_KEYS)),
        "tables": by_name(part(TABLE_KEYS)),
        "steps": listed(part(STEP_KEYS)),
        "sinks": listed(part(SINK_KEYS)),
    },
)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(PIPELINES)
@settings(max_examples=300, deadline=None)
def test_a_file_of_any_shape_is_read_or_refused_with_a_reason(value: object) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        path.write_text(json.dumps(value), encoding="utf-8")  # JSON is YAML.
        outcome = read_file(path, environment={})

    assert (outcome.definition is None) == bool(outcome.mistakes)
    assert all(one.text and one.origin.file for one in outcome.remarks)


@given(
    st.text(alphabet="ab:-{}[]&*!|>'\"#$ \n\t=.0", max_size=80), st.sampled_from(["yaml", "toml"])
)
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_or_refused_with_a_reason(text: str, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"pipeline.{suffix}")
        path.write_text(text, encoding="utf-8")
        outcome = read_file(path, environment={})

    # A pipeline needs a name, a source and a sink: no text of these letters has them.
    assert outcome.definition is None
    assert outcome.mistakes
