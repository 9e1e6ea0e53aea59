"""Answers of commits are kept for clients that retry a commit."""

import random

import pytest

from ister.base.limits import COMMIT_REMEMBERED_MS
from ister.broker.state import commit_answers as module
from ister.broker.state.commit_answers import (
    CLIENT_OVERHEAD_BYTES,
    COMMIT_OVERHEAD_BYTES,
    PART_COUNT,
    CommitAnswers,
)

NOW_MS = 1_000_000_000


def add(answers: CommitAnswers, client: str, word: str, time_ms: int = NOW_MS) -> None:
    answers.add(client, word, time_ms, [7], {})


def test_a_commit_is_found_by_its_word() -> None:
    answers = CommitAnswers()
    answers.add("c", "word", NOW_MS, [7, 8], {1: [8, ~3]})

    assert answers.find("word") == (NOW_MS, [7, 8], {1: [8, ~3]})
    assert answers.find("other") is None


def test_the_first_answer_stays_when_a_commit_is_replayed() -> None:
    answers = CommitAnswers()
    add(answers, "c", "word")
    size_bytes = answers.size_bytes
    answers.add("c", "word", NOW_MS + 1, [9], {})

    assert answers.find("word") == (NOW_MS, [7], {})
    assert answers.size_bytes == size_bytes


def test_a_commit_is_remembered_however_many_commits_others_make() -> None:
    answers = CommitAnswers()
    add(answers, "quiet", "first")
    for number in range(30_000):
        add(answers, "busy", f"busy-{number}", NOW_MS + COMMIT_REMEMBERED_MS)
    assert "first" in answers
    for number in range(PART_COUNT):
        add(answers, "busy", f"last-{number}", NOW_MS + COMMIT_REMEMBERED_MS + 1)

    assert "first" not in answers


def test_expired_commits_of_a_client_are_dropped() -> None:
    answers = CommitAnswers()
    for number in range(1_000):
        add(answers, "c", f"old-{number}")
    for number in range(1_000):
        add(answers, "c", f"new-{number}", NOW_MS + COMMIT_REMEMBERED_MS + 1)

    assert len(answers) == 1_000
    assert "new-0" in answers


def test_a_client_over_its_limit_loses_its_own_oldest_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COMMITS_CLIENT_BYTES_MAX", 100_000)
    answers = CommitAnswers()
    add(answers, "quiet", "quiet")
    for number in range(1_000):
        add(answers, "busy", f"busy-{number}")

    assert answers.size_bytes < 110_000
    assert "quiet" in answers
    assert "busy-0" not in answers
    assert "busy-999" in answers


def test_over_the_total_limit_the_largest_clients_lose_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COMMITS_BYTES_MAX", 100_000)
    answers = CommitAnswers()
    for number in range(5):
        add(answers, f"quiet-{number}", f"quiet-{number}")
    for number in range(2_000):
        add(answers, f"busy-{number % 3}", f"busy-{number}")
        assert answers.size_bytes <= 100_000

    assert all(f"quiet-{number}" in answers for number in range(5))
    assert all(f"busy-{number}" in answers for number in range(1_950, 2_000))
    assert len(answers) > 70_000 // (COMMIT_OVERHEAD_BYTES + 30)


def test_a_large_answer_counts_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMITS_CLIENT_BYTES_MAX", 100_000)
    answers = CommitAnswers()
    for number in range(10):
        answers.add("c", f"word-{number}", NOW_MS, [0], {0: list(range(10**9, 10**9 + 4_000))})

    assert len(answers) == 4
    assert answers.size_bytes <= 100_000


def test_a_snapshot_restores_all_commits() -> None:
    answers = CommitAnswers()
    for number in range(10_000):
        add(answers, f"c{number % 3}", f"word-{number}", NOW_MS + number)
    restored = CommitAnswers()
    for rows in answers.rows():
        restored.restore(rows)

    assert len(restored) == 10_000
    assert restored.size_bytes == answers.size_bytes
    assert restored.find("word-5") == (NOW_MS + 5, [7], {})
    with pytest.raises(ValueError, match="Expected"):
        restored.restore([("c", "w", b"12345678nonsense")])


def test_a_client_that_commits_now_and_then_keeps_its_commits_however_many_ids_others_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COMMITS_BYTES_MAX", 4_096_000)
    monkeypatch.setattr(module, "SMALL_PART", 100)
    answers = CommitAnswers()
    for number in range(20):
        add(answers, "quiet", f"quiet-{number}")
        for other in range(1_000):
            add(answers, f"flood-{number}-{other}", f"flood-{number}-{other}")
            assert answers.size_bytes <= 4_096_000

    assert all(f"quiet-{number}" in answers for number in range(20))
    assert "flood-0-0" not in answers


def test_an_idle_client_keeps_its_commits_until_the_total_limit_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COMMITS_BYTES_MAX", 4_096_000)
    monkeypatch.setattr(module, "SMALL_PART", 100)
    answers = CommitAnswers()
    for number in range(10):
        add(answers, "silent", f"silent-{number}")
    add(answers, "large", "large-0")
    for number in range(400):
        add(answers, "large", f"large-{number}")
    other = 0
    while "large-0" in answers:
        add(answers, f"flood-{other}", f"flood-{other}")
        other += 1

    assert answers.size_bytes > 4_000_000
    assert all(f"silent-{number}" in answers for number in range(10))


def test_a_client_without_commits_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMITS_BYTES_MAX", 100_000)
    answers = CommitAnswers()
    for number in range(5_000):
        add(answers, f"c{number}", f"word-{number}")

    assert answers.client_count == len(answers)
    assert len(answers) * (COMMIT_OVERHEAD_BYTES + CLIENT_OVERHEAD_BYTES) <= 100_000
    for number in range(20 * PART_COUNT):
        add(answers, "last", f"last-{number}", NOW_MS + COMMIT_REMEMBERED_MS + 1)
    assert answers.client_count == 1


def test_sizes_clients_and_classes_match_a_recount(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are compared with a recount after random commits."""
    monkeypatch.setattr(module, "COMMITS_BYTES_MAX", 200_000)
    monkeypatch.setattr(module, "COMMITS_CLIENT_BYTES_MAX", 60_000)
    monkeypatch.setattr(module, "SMALL_PART", 64)
    for seed in range(20):
        chance = random.Random(seed)
        answers, now_ms = CommitAnswers(), NOW_MS
        for number in range(2_000):
            now_ms += chance.choice((0, 1, 1_000, 5_000))
            client = chance.choice(("busy", "busy", "other", f"one-{number}"))
            answers.add(client, f"w{number}", now_ms, [number] * chance.choice((1, 1, 300)), {})
            assert answers.size_bytes <= 200_000
            assert f"w{number}" in answers
        rows = [row for some in answers.rows() for row in some]
        clients = {client for client, _, _ in rows}

        assert len(rows) == len(answers)
        assert len(clients) == answers.client_count
        assert answers.size_bytes == sum(
            COMMIT_OVERHEAD_BYTES + len(word) + len(answer) for _, word, answer in rows
        ) + sum(CLIENT_OVERHEAD_BYTES + len(client) for client in clients)
