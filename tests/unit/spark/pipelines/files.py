"""Pipelines as small files, for tests."""

from pathlib import Path
from textwrap import dedent, indent

from ister.spark.pipelines.loading import CheckedPipeline, read_file

SOURCE = """\
orders:
  topic: /default/orders
  format: json
  schema: "order_id string, region string, amount double, at timestamp"
"""
WATERMARK = "  watermark: {column: at, delay: 30 seconds}\n"
CONSOLE = "- {console: true, from: orders}\n"


def text_of(*, source: str = SOURCE, steps: str = "", sinks: str = CONSOLE, rest: str = "") -> str:
    """Return a pipeline file: the first lines are its name and its sources."""
    parts = ["name: test\n", "sources:\n", indent(dedent(source), "  ")]
    if steps:
        parts += ["steps:\n", indent(dedent(steps), "  ")]
    parts += ["sinks:\n", indent(dedent(sinks), "  "), dedent(rest)]
    return "".join(parts)


def outcome_of(
    folder: Path,
    text: str,
    *,
    suffix: str = ".yaml",
    chosen: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
) -> CheckedPipeline:
    """Read a pipeline from a file of that text."""
    path = folder / f"pipeline{suffix}"
    path.write_text(text, encoding="utf-8")
    return read_file(path, chosen=chosen, environment=environment or {})


def said(outcome: CheckedPipeline, folder: Path) -> list[str]:
    """Return the remarks with paths as seen from the folder."""
    return [str(one).replace(f"{folder}/", "") for one in outcome.remarks]
