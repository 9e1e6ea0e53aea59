"""Every setting is an option of `ister serve`, with the words of its table."""

from typing import Any

import pytest
import typer

from ister.cli.app import make_app
from ister.config import Setting, all_settings

GROUP: Any = typer.main.get_command(make_app(["serve"]))
OPTIONS = {one.opts[0]: one for one in GROUP.commands["serve"].params}
SETTINGS = [one for one in all_settings() if one.part != "limits"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.flag)
def test_a_setting_is_an_option_with_its_own_words(setting: Setting) -> None:
    option = OPTIONS[setting.flag]

    assert option.help == setting.why
    assert (option.metavar or "") == setting.metavar
    assert option.is_flag is not bool(setting.metavar)


def test_no_other_option_is_hidden_in_the_command() -> None:
    assert set(OPTIONS) - {one.flag for one in SETTINGS} == {"--config", "--limit", "--quiet"}
