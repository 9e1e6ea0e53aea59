"""Steps of a pipeline file."""

import re
from pathlib import Path

from ister.spark.pipelines.config.definition import PipelineStep, PythonStep, SqlStep
from ister.spark.pipelines.config.elements import (
    absolute_path,
    check_view,
    deduplicate,
    label_of,
    watermark,
)
from ister.spark.pipelines.config.fields import Fields, Notes
from ister.spark.pipelines.config.positions import ConfigNode, FileLine
from ister.spark.pipelines.config.variables import Secret
from ister.spark.pipelines.sql import without_semicolon

STEP_KEYS = ("name", "sql", "sql_file", "python", "inputs", "watermark", "deduplicate")

# A step in SQL is a page; more is generated, and belongs into several steps.
SQL_BYTES_MAX = 256 * 1024

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


def step(node: ConfigNode, notes: Notes) -> PipelineStep:
    """Return a step in SQL or Python."""
    fields = Fields(node, what=label_of(node, "a step", "step"), known=STEP_KEYS, notes=notes)
    name = fields.text("name")
    if name is None:
        if fields.is_mapping and not fields.has("name"):
            fields.missing("name", "it becomes the view of that name")
        name = ""
    else:
        check_view(name, fields.origin_of("name"), notes)
    kinds = [key for key in ("sql", "sql_file", "python") if fields.has(key)]
    if len(kinds) != 1 and fields.is_mapping:
        said = f"has {' and '.join(f'`{key}`' for key in kinds)}" if kinds else "does nothing"
        notes.mistake(node.origin, f"{fields.what} {said}: give one of `sql`, `sql_file`, `python`")
    mark, unique = watermark(fields, notes), deduplicate(fields, notes)
    if kinds[:1] == ["python"]:
        return PythonStep(
            name=name,
            function=_function(fields),
            inputs=_inputs(fields),
            outputs=(name,),
            folder=notes.folder,
            watermark=mark,
            deduplicate=unique,
            origin=node.origin,
        )
    if fields.has("inputs") and "python" not in kinds:
        fields.mistake("inputs", "`inputs` goes with `python`; SQL names its views behind FROM")
    sql, origin = _sql(fields, notes) if kinds else ("", node.origin)
    return SqlStep(
        name=name,
        sql=sql,
        watermark=mark,
        deduplicate=unique,
        origin=node.origin,
        sql_origin=origin,
    )


def _function(fields: Fields) -> str:
    text = fields.text("python")
    if text is not None and not _FUNCTION.match(text):
        fields.mistake("python", f"`{text}` is no function: write `module:function`")
        return ""
    return text or ""


def _inputs(fields: Fields) -> tuple[str, ...]:
    if not fields.has("inputs"):
        fields.missing("inputs", "the views that the function is given, as in `[orders]`")
    return fields.texts("inputs")


def _sql(fields: Fields, notes: Notes) -> tuple[str, FileLine]:
    """Return the SQL of a step and where it begins."""
    node = fields.find("sql")
    if node is not None:
        text = fields.text("sql") or ""
        return without_semicolon(text), FileLine(notes.file, node.text_line or node.origin.line)
    name = fields.text("sql_file") or ""
    path = Path(absolute_path(name, notes.folder))
    origin = FileLine(str(Path(notes.file).parent / name), 1)
    if not name:
        return "", fields.origin
    try:
        with path.open("rb") as file:
            data = file.read(SQL_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        fields.mistake("sql_file", f"`{name}` cannot be read: {error.strerror}")
        return "", fields.origin
    except UnicodeDecodeError:
        fields.mistake("sql_file", f"`{name}` is no text in UTF-8")
        return "", fields.origin
    if len(data) > SQL_BYTES_MAX:
        fields.mistake("sql_file", f"`{name}` is larger than {SQL_BYTES_MAX:,} bytes")
        return "", fields.origin
    value = notes.put(text, origin)
    if isinstance(value, Secret):
        notes.mistake(origin, "SQL takes no secret: `broker`, `token`, `options` and `settings` do")
        return "", origin
    return without_semicolon(value), origin
