"""YAML and TOML become the same nodes, each with its line, whatever the file holds."""

import pytest

from ister.spark.pipelines.config.parsing import NODES_MAX, MalformedError, parse_file, toml_lines
from ister.spark.pipelines.config.positions import ConfigNode, Remark

YAML = """\
name: one            # line 1
sources:
  orders:
    topic: /default/orders
    limit: 5
    at: 2026-11-15T10:00:00Z
steps:
  - name: first
    sql: |
      SELECT 1

  - {name: second, sql: SELECT 2}
"""
TOML = '''\
name = "one"

[sources.orders]
topic = "/default/orders"
limit = 5
at = 2026-11-15T10:00:00Z

[[steps]]
name = "first"
sql = """
SELECT 1
[sources.not_a_header]
key = "no key"
"""

[[steps]]
name = "second"
sql = "SELECT 2"
watermark = {column = "at", delay = "1s"}

[[steps.inner]]
deep = true
'''


def parsed(text: str, language: str = "yaml") -> ConfigNode:
    remarks: list[Remark] = []
    node = parse_file(text, file="f", language=language, remarks=remarks)
    assert remarks == []
    return node


def at(node: ConfigNode, *path: str | int) -> ConfigNode:
    for part in path:
        inner = node.find(part) if isinstance(part, str) else (node.items or ())[part]
        assert inner is not None
        node = inner
    return node


def malformed(text: str, language: str = "yaml") -> str:
    with pytest.raises(MalformedError) as caught:
        parse_file(text, file="f", language=language, remarks=[])
    return str(caught.value.remark)


def test_every_value_of_a_yaml_file_has_its_line() -> None:
    root = parsed(YAML)

    assert at(root, "name").origin.line == 1
    assert at(root, "sources", "orders", "limit").origin.line == 5
    assert at(root, "steps", 1, "sql").origin.line == 12
    assert (at(root, "steps", 0, "sql").origin.line, at(root, "steps", 0, "sql").text_line) == (
        9,
        10,
    )


def test_every_key_of_a_toml_file_has_its_line() -> None:
    root = parsed(TOML, "toml")

    assert at(root, "name").origin.line == 1
    assert at(root, "sources", "orders").origin.line == 3
    assert at(root, "sources", "orders", "limit").origin.line == 5
    assert (at(root, "steps", 0, "sql").origin.line, at(root, "steps", 0, "sql").text_line) == (
        10,
        11,
    )
    assert at(root, "steps", 1, "name").origin.line == 17
    assert at(root, "steps", 1, "watermark", "delay").origin.line == 19
    assert at(root, "steps", 1, "inner", 0, "deep").origin.line == 22


def test_a_header_inside_a_text_of_several_lines_is_none() -> None:
    assert ("sources", "not_a_header") not in toml_lines(TOML)


def test_scalars_are_the_same_in_both_languages() -> None:
    for root in (parsed(YAML), parsed(TOML, "toml")):
        assert at(root, "sources", "orders", "limit").scalar == 5
        assert str(at(root, "sources", "orders", "at").scalar).startswith("2026-11-15T10:00:00")


def test_yaml_words_for_true_and_nothing_are_understood() -> None:
    root = parsed("a: yes\nb: ~\nc: 'yes'\nd: 1_000\ne: 1.5\n")

    assert [at(root, key).scalar for key in "abcde"] == [True, None, "yes", 1000, 1.5]


def test_a_key_that_is_there_twice_is_told_with_both_lines() -> None:
    remarks: list[Remark] = []
    parse_file("a: 1\nb: 2\na: 3\n", file="f", language="yaml", remarks=remarks)

    assert [str(one) for one in remarks] == ["f:3: key `a` is there twice, before in line 1"]


def test_a_few_aliases_cannot_stand_for_billions_of_values() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]

    assert f"has more than {NODES_MAX:,} values" in malformed("\n".join(lines))


def test_a_value_that_holds_itself_is_refused() -> None:
    assert "is nested deeper than 32 levels" in malformed("a: &a [*a]\n")


@pytest.mark.parametrize("language", ["yaml", "toml"])
def test_a_file_nested_beyond_reason_is_refused(language: str) -> None:
    text = ("a = " if language == "toml" else "a: ") + "[" * 5_000 + "]" * 5_000

    assert "nested deeper" in malformed(text, language)


def test_a_number_of_thousands_of_digits_is_no_number() -> None:
    digits = "9" * 5_000

    found = parse_file(f"a: {digits}", file="f", language="yaml", remarks=[]).find("a")
    assert found is not None
    assert found.scalar == digits
    with pytest.raises(MalformedError) as raised:
        parse_file(f"a = {digits}", file="f", language="toml", remarks=[])
    assert str(raised.value.remark) == "f: is no TOML: a number has too many digits"


def test_yaml_can_name_no_python_object() -> None:
    root = parsed("a: !!python/object/apply:os.system ['true']\n")

    assert at(root, "a", 0).scalar == "true"


@pytest.mark.parametrize(
    ("text", "language", "said"),
    [
        ("a: [1\nb: 2\n", "yaml", "f:2: is no YAML: "),
        ("a: {b: ${C}}\n", "yaml", "a text with ${...} needs quotes"),
        ("", "yaml", "f:1: is empty"),
        ("a = 1\nb = = 2\n", "toml", "f:2: is no TOML: "),
        ("a = 'open\n", "toml", "f:1: is no TOML: "),
        ("", "toml", "f:1: is empty"),
        ("a: \x00\n", "yaml", "f: is no YAML"),
    ],
)
def test_a_file_of_another_language_is_told_with_its_line(
    text: str, language: str, said: str
) -> None:
    assert said in malformed(text, language)
