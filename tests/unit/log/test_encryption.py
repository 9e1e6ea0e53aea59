"""With a keyring nothing readable is on the disk, and only the right key opens it."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.log.harness import Bench, filler

from ister.base.errors import CorruptedError, EncryptionKeyError, NotEncryptedError
from ister.log import ChunkBackend, FileBackend, LogOptions
from ister.log.files.entry import Kind
from ister.log.files.envelope import NONCE_BYTES, Envelope
from ister.objects import LocalStore
from ister.objects.keyring import FileKeyring
from ister.testing import FaultyDisk

SECRET = b"attack at dawn, said nobody"


@pytest.fixture
def keyring(tmp_path: Path) -> FileKeyring:
    return FileKeyring.create(tmp_path / "keys")


def options(keyring: FileKeyring | None) -> LogOptions:
    return LogOptions(segment_bytes=8_192, extent_bytes=1_024, ciphers=keyring)


def backend_of(disk: FaultyDisk, kind: str) -> FileBackend | ChunkBackend:
    return FileBackend(disk) if kind == "files" else ChunkBackend(LocalStore(disk))


def fill(bench: Bench) -> None:
    for number in range(60):
        bench.publish(1, SECRET, filler(200)(number))
    batch = bench.batch(1, SECRET)
    bench.log.append_transaction(
        [(1, batch.base_offset, batch.publish_time_ms, 1, [batch.to_bytes()])], SECRET
    )
    bench.append_changes(SECRET)
    bench.commit()
    bench.checkpoint(SECRET)
    bench.publish(2, SECRET)


def everything(disk: FaultyDisk) -> bytes:
    names = [
        name
        for folder in ("segments", "chunks", "manifests", "snapshots")
        for name in disk.names(folder)
    ]
    files = [disk.open(name) for name in names]
    return b"".join(file.read(0, file.size()) for file in files)


@pytest.mark.parametrize("kind", ["files", "chunks"])
def test_what_is_stored_can_be_read_back_and_not_be_found_on_the_disk(
    kind: str, keyring: FileKeyring
) -> None:
    disk = FaultyDisk()
    bench = Bench(backend_of(disk, kind), options(keyring))
    fill(bench)

    assert SECRET not in everything(disk)
    again = bench.reopened(backend_of(disk, kind))
    assert again.snapshots == [SECRET]
    assert again.payloads(1) == bench.payloads(1)
    assert again.payloads(1)[::2] == [SECRET] * 61
    assert again.payloads(2) == [SECRET]


@pytest.mark.parametrize("kind", ["files", "chunks"])
def test_without_its_key_a_log_is_not_opened_and_not_changed(
    kind: str, keyring: FileKeyring, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    fill(Bench(backend_of(disk, kind), options(keyring)))
    before = everything(disk)
    other = FileKeyring.create(tmp_path / "other")

    for wrong in (None, other):
        with pytest.raises(EncryptionKeyError) as caught:
            Bench(backend_of(disk, kind), options(wrong))
        assert caught.value.key == keyring.ids[0]
        assert everything(disk) == before


def test_a_wrong_key_does_not_cut_a_log_without_a_manifest(
    keyring: FileKeyring, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk), options(keyring))
    bench.publish(1, SECRET)
    before = everything(disk)

    with pytest.raises(EncryptionKeyError):
        Bench(FileBackend(disk), options(FileKeyring.create(tmp_path / "other")))
    assert everything(disk) == before
    assert bench.reopened().payloads(1) == [SECRET]


def test_new_files_use_a_new_key_and_old_ones_stay_readable(keyring: FileKeyring) -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk), options(keyring))
    for number in range(30):
        bench.publish(1, filler(300)(number))
    keyring.rotate()
    for number in range(30, 60):
        bench.publish(1, filler(300)(number))

    again = bench.reopened()
    assert again.payloads(1) == [filler(300)(n) for n in range(60)]
    stored = everything(disk)
    assert all(key_id.encode() in stored for key_id in keyring.ids)


def test_encryption_can_begin_in_a_log_that_has_plain_files(keyring: FileKeyring) -> None:
    disk = FaultyDisk()
    Bench(FileBackend(disk), options(None)).publish(1, b"plain")
    bench = Bench(FileBackend(disk), options(keyring))
    bench.publish(1, SECRET)

    assert bench.payloads(1) == [b"plain", SECRET]
    assert bench.reopened().payloads(1) == [b"plain", SECRET]
    assert SECRET not in everything(disk)


@pytest.mark.parametrize("kind", ["files", "chunks"])
@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_log_that_is_not_encrypted_is_refused_with_keys_unless_it_is_accepted(
    kind: str, with_manifest: bool, keyring: FileKeyring
) -> None:
    disk = FaultyDisk()
    plain = Bench(backend_of(disk, kind), options(None))
    plain.publish(1, b"plain")
    if with_manifest:
        plain.checkpoint(b"state")
    elif kind == "chunks":
        for name in disk.names("manifests"):
            disk.remove(name)
    before = everything(disk)
    strict = replace(options(keyring), accept_plain=False)

    with pytest.raises(NotEncryptedError) as caught:
        Bench(backend_of(disk, kind), strict)
    assert ("manifests" in caught.value.file) == with_manifest
    assert everything(disk) == before

    accepting = Bench(backend_of(disk, kind), options(keyring))
    accepting.next_offsets[1] = 1  # What the snapshot of a broker would say.
    accepting.publish(1, SECRET)
    accepting.checkpoint(b"state")
    again = Bench(backend_of(disk, kind), strict)
    assert again.payloads(1) == [b"plain", SECRET]


@pytest.mark.parametrize("kind", ["files", "chunks"])
def test_an_encrypted_log_that_is_replaced_by_a_plain_one_is_refused(
    kind: str, keyring: FileKeyring
) -> None:
    strict = replace(options(keyring), accept_plain=False)
    disk, theirs = FaultyDisk(), FaultyDisk()
    fill(Bench(backend_of(disk, kind), strict))
    fill(Bench(backend_of(theirs, kind), options(None)))

    with pytest.raises(NotEncryptedError):
        Bench(backend_of(theirs, kind), strict)


@pytest.mark.parametrize("kind", ["files", "chunks"])
def test_a_new_log_with_keys_needs_no_acceptance(kind: str, keyring: FileKeyring) -> None:
    disk = FaultyDisk()
    strict = replace(options(keyring), accept_plain=False)
    for number in range(4):
        bench = Bench(backend_of(disk, kind), strict)
        bench.next_offsets[1] = number  # What the snapshot of a broker would say.
        bench.publish(1, SECRET)
        if number % 2:
            bench.checkpoint()

    assert Bench(backend_of(disk, kind), strict).payloads(1) == [SECRET] * 4


def test_each_footer_of_a_file_has_a_nonce_of_its_own(keyring: FileKeyring) -> None:
    """A footer whose end was torn is written again, maybe for fewer entries."""
    cipher, key_id, wrapped = keyring.new_cipher()
    envelope = Envelope(1, cipher, key_id=key_id, wrapped_key=wrapped)
    footers = [
        bytes(envelope.seal(Kind.FOOTER, 0, number, 0, 0, [b"extents"])[0]) for number in (7, 7, 6)
    ]

    assert len({footer[:NONCE_BYTES] for footer in footers}) == 3


def test_an_entry_moved_to_another_place_does_not_decrypt(keyring: FileKeyring) -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk), options(keyring))
    bench.publish(1, b"one")
    name = disk.names("segments")[0]
    bench.log.close()
    file = disk.open(name)
    before = file.read(0, file.size())
    other_disk = FaultyDisk()
    other = Bench(FileBackend(other_disk), options(keyring))
    other.publish(1, b"two")
    other_file = other_disk.open(name)
    stored = other_file.read(0, other_file.size())
    # All but the header of the file, which has the key.
    start = before.index(b"JS"[::-1], 40) - 8
    file.write(start, [stored[start : len(before)]])

    plan = bench.log.plan(1, 0, 1_000)
    assert plan is not None
    with pytest.raises(CorruptedError):
        plan.run()
