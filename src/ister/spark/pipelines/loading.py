"""Reads and checks a whole pipeline file, YAML or TOML, and reports every mistake at once."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ister.base.errors import ConfigError
from ister.spark.pipelines.analysis import check_definition
from ister.spark.pipelines.config import (
    FILE_BYTES_MAX,
    ConfigNode,
    Definition,
    FileLine,
    MalformedError,
    Notes,
    Remark,
    definition_of,
    parse_file,
)

LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


@dataclass(frozen=True, slots=True)
class CheckedPipeline:
    """The result of reading a pipeline. With a mistake among the remarks it has no definition."""

    definition: Definition | None
    remarks: tuple[Remark, ...]

    @property
    def mistakes(self) -> list[Remark]:
        """The remarks that have to be corrected."""
        return [one for one in self.remarks if not one.is_warning]

    @property
    def warnings(self) -> list[Remark]:
        """The remarks on what is probably not intended."""
        return [one for one in self.remarks if one.is_warning]

    def get(self) -> Definition:
        """Return the definition, or raise `ConfigError` with every mistake."""
        if self.definition is None:
            raise ConfigError([str(one) for one in self.mistakes])
        return self.definition


def read_file(
    path: Path,
    *,
    chosen: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> CheckedPipeline:
    """Read and check a pipeline file. `chosen` are the variables of `--set`."""
    notes = Notes(
        file=str(path),
        folder=str(path.absolute().parent),
        chosen=chosen or {},
        environment=os.environ if environment is None else environment,
    )
    try:
        text = _text_of(path)
        language = LANGUAGES[path.suffix.lower()]
        node = parse_file(text, file=notes.file, language=language, remarks=notes.remarks)
    except MalformedError as error:
        return CheckedPipeline(None, (*notes.remarks, error.remark))
    return check_pipeline(node, notes)


def check_pipeline(
    node: ConfigNode,
    notes: Notes,
    function: Callable[..., object] | None = None,
    inputs: tuple[str, ...] = (),
) -> CheckedPipeline:
    """Check a whole pipeline, given the root of its values.

    `function` is that of a Python pipeline, `inputs` the names of its parameters.
    """
    definition = definition_of(node, notes, function, inputs)
    check_definition(definition, notes)
    for name in sorted(set(notes.chosen) - notes.used):
        notes.mistake(FileLine("--set"), f"the pipeline has no variable `${{{name}}}`")
    remarks = tuple(dict.fromkeys(sorted(notes.remarks)))
    is_wrong = any(not one.is_warning for one in remarks)
    return CheckedPipeline(None if is_wrong else definition, remarks)


def _text_of(path: Path) -> str:
    whole = FileLine(str(path))
    if path.suffix.lower() not in LANGUAGES:
        said = "is no pipeline: a file ends in .yaml, .yml or .toml, a Python pipeline in .py"
        raise MalformedError(Remark(whole, said))
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise MalformedError(
            Remark(whole, f"cannot be read: {error.strerror or error}".lower())
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise MalformedError(Remark(whole, f"is larger than {FILE_BYTES_MAX:,} bytes"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise MalformedError(Remark(FileLine(str(path), line), "is no text in UTF-8")) from None
