"""What the command line says of an error of the SDK."""

import pytest

from ister.base.errors import ConnectionLostError
from ister.cli.console.words import in_options


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "a live topic takes no max_age and no ttl: say kind='stream'",
            "a live topic takes no --max-age and no --ttl: say --kind stream",
        ),
        ("dedup_window_ms is 0 to 10 (24 hours)", "--dedup-window is 0 to 10 (24 hours)"),
        ("max_leases is 0 (no end) to 1000", "--max-leases is 0 (no end) to 1000"),
        (
            "an int is an offset; for a time give a datetime, or seconds since 1970 as a float",
            "a whole number is an offset; write a time as 2026-11-15T10:00Z",
        ),
        (
            "it may want a certificate: `cert` and `key` of `ister.Tls`, or --tls-cert",
            "it may want a certificate: --tls-cert and --tls-key",
        ),
    ],
)
def test_arguments_become_options(said: str, told: str) -> None:
    assert in_options(said) == told


@pytest.mark.parametrize(
    "said",
    [
        "topic '/default/max_age' does not exist",
        "namespace 'ttl' does not exist",
        "/data/max_bytes: no such file",
        "subscription 'deliver_at.x' is taken",
    ],
)
def test_names_stay_as_they_are(said: str) -> None:
    assert in_options(said) == said


def test_a_lost_message_is_sent_again_by_hand() -> None:
    assert in_options(str(ConnectionLostError("reset"))).endswith("is unknown; send it again")
