"""Start-up: what the doors are given of what the machine has."""

import pytest

from ister.server.serve import _grpc_connections_max


@pytest.mark.parametrize(
    ("wanted", "files_max", "taken"),
    [
        (20_000, None, 20_000),
        (20_000, 1_048_576, 20_000),
        (20_000, 80_000, 20_000),
        (20_000, 79_996, 19_999),
        (20_000, 1_024, 256),
        (10, 1_024, 10),
        (20_000, 3, 1),
    ],
)
def test_each_grpc_door_takes_a_quarter_of_the_open_files_at_most(
    wanted: int, files_max: int | None, taken: int
) -> None:
    assert _grpc_connections_max(wanted, files_max) == taken
