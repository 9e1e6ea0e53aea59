"""`ister topics update`, over a real broker in a thread; the topic has no namespace in front."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

import ister
from ister.base import StreamSettings
from ister.cli.app import make_app
from ister.cli.console.words import in_options
from ister.testing import ThreadedBroker


@pytest.fixture
def client() -> Iterator[ister.sync.Client]:
    with ThreadedBroker() as broker, ister.sync.connect(broker.url) as client:
        client.create_topic("orders", kind="stream", max_bytes=7)
        yield client


def update(client: ister.sync.Client, *words: str) -> Result:
    command = ["topics", "update", "orders", "--url", client.url, *words]
    return CliRunner().invoke(make_app(["topics"]), command)


def settings(client: ister.sync.Client) -> StreamSettings:
    [row] = client.topics("orders")
    assert row.stream is not None
    return row.stream.settings


def test_what_may_drop_messages_is_said_first_and_asks(client: ister.sync.Client) -> None:
    refused = update(client, "--max-age", "7d")

    assert refused.exit_code == 2
    assert "messages of /default/orders that are beyond --max-age 7d" in refused.stderr
    assert settings(client).max_age_ms == 0


def test_settings_of_a_topic_that_exists_are_shown_as_people_write_them(
    client: ister.sync.Client,
) -> None:
    client.update_topic("orders", max_age=5 * 86_400)
    command = ["topics", "create", "orders", "--kind", "stream", "--url", client.url]

    refused = CliRunner().invoke(make_app(["topics"]), [*command, "--max-bytes", "1GiB"])

    said = "exists already with --max-age 5d, not 0; --max-bytes 7B, not 1GiB:"
    assert said in in_options(str(refused.exception))


def test_an_update_without_an_option_is_refused(client: ister.sync.Client) -> None:
    refused = update(client, "--yes")

    assert refused.exit_code == 2
    assert "give a setting to change" in refused.stderr


def test_the_compaction_lag_changes_without_asking(client: ister.sync.Client) -> None:
    client.delete_topic("orders")
    client.create_topic("orders", kind="stream", retention="compact")

    assert update(client, "--min-compaction-lag", "7d").exit_code == 0
    assert settings(client).compaction_lag_ms == 604_800_000


def test_what_is_given_changes(client: ister.sync.Client) -> None:
    assert update(client, "--max-age", "7d", "--yes").exit_code == 0
    changed = update(client, "--max-bytes", "0", "--durability", "os")

    assert changed.exit_code == 0
    assert "topic /default/orders is changed" in changed.stderr
    assert settings(client) == StreamSettings(durability="os", max_age_ms=604_800_000)


def test_what_keeps_more_does_not_ask(client: ister.sync.Client) -> None:
    assert update(client, "--max-age", "7d", "--yes").exit_code == 0
    higher = update(client, "--max-age", "8d", "--max-bytes", "7")
    mixed = update(client, "--max-age", "9d", "--max-bytes", "6")

    assert higher.exit_code == 0
    assert "drops" not in higher.stderr
    assert mixed.exit_code == 2
    assert "that are beyond --max-bytes 6\n" in mixed.stderr
    assert settings(client) == StreamSettings(max_age_ms=8 * 86_400_000, max_bytes=7)
