"""What `ister pipeline new` writes is right as it stands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ister.base.errors import BadRequestError
from ister.spark.pipelines import TEMPLATES, new_files, write_files
from ister.spark.pipelines.entry import read_pipeline
from ister.spark.pipelines.loading import read_file

COMMANDS = ("ister serve", "ister topics create", "ister produce", "ister pipeline run")


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_has_no_mistake_and_nothing_to_warn_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    write_files(tmp_path / "mine", new_files("mine", template))
    if template == "python":
        monkeypatch.syspath_prepend(str(tmp_path / "mine"))
        outcome = read_pipeline(str(tmp_path / "mine" / "totals.py"))
        sys.modules.pop("totals", None)
    else:
        outcome = read_file(tmp_path / "mine" / "pipeline.yaml", environment={})

    assert outcome.remarks == ()
    assert outcome.get().name == "mine"


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_says_what_to_do_next(template: str) -> None:
    texts = {one.path: one.text for one in new_files("mine", template)}

    assert [word for word in COMMANDS if word not in texts["README.md"]] == []
    assert not any("{{" in text for text in texts.values())


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_sample_data_of_every_template_are_lines_of_json(tmp_path: Path, template: str) -> None:
    write_files(tmp_path, new_files("mine", template))
    words = ["payments", "2"] if template == "join" else ["2"]
    result = subprocess.run(
        [sys.executable, "sample.py", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 2
    assert all("at" in row for row in rows)


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pipeline.yaml").write_text("mine", encoding="utf-8")

    with pytest.raises(BadRequestError, match="exists and is not empty"):
        write_files(tmp_path / "mine", new_files("mine"))
    assert (tmp_path / "mine" / "pipeline.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("name", "template", "said"),
    [
        ("a b", "window", "`a b` cannot name a pipeline"),
        ("../a", "window", "cannot name a pipeline"),
        ("", "window", "cannot name a pipeline"),
        ("x" * 101, "window", "at most 100 of them"),
        ("a", "windwo", "there is no template `windwo`, did you mean `window`?"),
    ],
)
def test_a_name_or_template_that_cannot_be_is_refused(name: str, template: str, said: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        new_files(name, template)

    assert said in str(caught.value)
