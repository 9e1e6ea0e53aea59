"""Schemas: what Spark takes passes, and what it does not is told in plain words."""

import pytest

from ister.spark.pipelines.sql.ddl import BadDdlError, DdlColumn, parse_ddl


def test_columns_have_names_and_types() -> None:
    assert parse_ddl(
        "id BIGINT, `my name`: string NOT NULL, at timestamp COMMENT 'it''s then'"
    ) == (
        DdlColumn("id", "bigint"),
        DdlColumn("my name", "string"),
        DdlColumn("at", "timestamp"),
    )


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("a decimal(12, 2)", "decimal(12,2)"),
        ("a decimal", "decimal"),
        ("a varchar(10)", "varchar(10)"),
        ("a array<array<int>>", "array<array<int>>"),
        ("a map<string, array<double>>", "map<string,array<double>>"),
        ("a struct<b: int, c: struct<d string>>", "struct<b:int,c:struct<d:string>>"),
        ("a interval day to second", "interval"),
        ("a variant", "variant"),
    ],
)
def test_types_may_be_nested(text: str, type_: str) -> None:
    [column] = parse_ddl(text)

    assert column.type == type_


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no columns"),
        ("a int,", "ends after the comma behind `a`"),
        ("a", "column `a` has no type: write `a string`"),
        ("a, b int", "column `a` has no type: write `a string`"),
        ("a strng", "column `a`: `strng` is no type, did you mean `string`?"),
        ("a text", "column `a`: `text` is no type, did you mean `string`?"),
        ("a bool", "column `a`: `bool` is no type, did you mean `boolean`?"),
        ("a int b int", "expected a comma after column `a`, found `b`"),
        ("a int, A string", "column `A` is there twice"),
        ("a array", "column `a`: `array` needs its types: write `array<string>`"),
        ("a array<int", "`array<` has no closing `>`"),
        ("a map<string>", "a map has two types: write `map<string, int>`"),
        ("a struct<b int", "`>` is missing at the end"),
        ("a varchar", "column `a`: `varchar` needs a length; `string` has none"),
        ("a decimal(x)", "`decimal` takes numbers in parentheses: write `decimal(12, 2)`"),
        ("a decimal(1", "`decimal` takes numbers in parentheses: write `decimal(12, 2)`"),
        ("a int not empty", "column `a`: after NOT comes NULL"),
        (", a int", "expected the name of a column, found `,`"),
        ("a " + "array<" * 40 + "int", "types are nested deeper than 32 levels"),
    ],
)
def test_what_is_wrong_is_told(text: str, said: str) -> None:
    with pytest.raises(BadDdlError) as caught:
        parse_ddl(text)

    assert str(caught.value) == said
