"""Encryption at rest: no nonce is used twice, and no plain or forged file is accepted."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.crash.conftest import WAYS, Setup
from tests.crash.machine import TOPICS, History, OpenBackend, check, content, in_store, on_disk
from tests.crash.test_log_damage import finished, unharmed
from tests.crash.workload import live, log_options

from ister.base.errors import CorruptedError
from ister.codec import Batch, encode
from ister.log import Keyring, check_folder
from ister.log.files.entry import (
    BATCH_KINDS,
    ENCRYPTED,
    Header,
    Kind,
    decode_file_header,
    encode_file_header,
    encode_transaction,
    pack_header,
    padding,
    parse_transaction,
)
from ister.log.files.envelope import Envelope
from ister.log.files.ports import Buffer, Cipher
from ister.log.files.scan import Scan, read_file_header
from ister.objects import FileKeyring
from ister.testing import Crash, Fault, FaultyDisk


@dataclass
class Seals:
    """Every plaintext that was ever sealed, by its data key and nonce."""

    seen: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    # By data key, the plaintexts of all footers.
    footers: dict[bytes, set[bytes]] = field(default_factory=dict)
    count: int = 0

    def add(self, key: bytes, nonce: bytes, plain: Buffer, aad: bytes) -> None:
        """Fail when another plaintext was sealed with the same key and nonce."""
        self.count += 1
        digest = sha256(len(aad).to_bytes(8) + aad + bytes(plain)).digest()
        assert self.seen.setdefault((key, nonce), digest) == digest, "a nonce was used twice"
        # What is bound to an entry begins with its kind.
        if aad[0] == Kind.FOOTER:
            self.footers.setdefault(key, set()).add(digest)


class WatchedCipher:
    def __init__(self, cipher: Cipher, key: bytes, seals: Seals) -> None:
        self._cipher = cipher
        self._key = key
        self._seals = seals

    def encrypt(self, plain: Buffer, aad: bytes, nonce: bytes) -> bytes:
        self._seals.add(self._key, nonce, plain, aad)
        return self._cipher.encrypt(plain, aad, nonce)

    def decrypt(self, sealed: Buffer, aad: bytes, nonce: bytes) -> bytes:
        return self._cipher.decrypt(sealed, aad, nonce)


class WatchedKeyring:
    """A keyring whose ciphers are watched; a data key is known by its wrapped form."""

    def __init__(self, keyring: Keyring, seals: Seals) -> None:
        self._keyring = keyring
        self._seals = seals

    def new_cipher(self) -> tuple[Cipher, str, bytes]:
        cipher, key_id, wrapped = self._keyring.new_cipher()
        return WatchedCipher(cipher, wrapped, self._seals), key_id, wrapped

    def open_cipher(self, key_id: str, wrapped: bytes) -> Cipher:
        return WatchedCipher(self._keyring.open_cipher(key_id, wrapped), wrapped, self._seals)


@pytest.fixture(params=["files", "chunks"])
def encrypted_setup(request: pytest.FixtureRequest, tmp_path: Path) -> Setup:
    keyring = FileKeyring.create(tmp_path / "keys.json")
    return Setup(on_disk if request.param == "files" else in_store, log_options(keyring))


def watch(setup: Setup) -> tuple[Setup, Seals]:
    seals = Seals()
    assert setup.options.ciphers is not None
    options = replace(setup.options, ciphers=WatchedKeyring(setup.options.ciphers, seals))
    return Setup(setup.open_backend, options), seals


def test_no_nonce_is_used_twice_wherever_the_machine_crashes(encrypted_setup: Setup) -> None:
    """This includes footers of files whose end was torn, and torn footers."""
    step = 3 if encrypted_setup.open_backend is on_disk else 7
    for number in range(0, encrypted_setup.operations() + 1, step):
        setup, seals = watch(encrypted_setup)
        disk = FaultyDisk()
        disk.crash_at(number)
        history = setup.live(disk)
        keep, seed = WAYS[1 + number % 5]
        found = disk.reopen(keep, seed=seed)
        for _ in range(2):
            # Started again, stopped while the footer is written, and started once more.
            found.crash_at(len(found.operations) + 2 + number % 4)
            try:
                machine = setup.open(found, history)
                machine.publish(1, 300)
                group = machine.log.take()
                assert group is not None
                machine.log.write(group)
            except Crash:
                pass
            found = found.reopen("torn", seed=number)
        machine = setup.open(found, history)
        machine.commit(machine.mark)
        machine.checkpoint()
        assert seals.count > 0


def test_no_nonce_is_used_twice_when_the_footer_of_a_file_is_written_again(
    encrypted: Setup,
) -> None:
    """A file gets two different footers when a crash hurts the first and what is not synced."""
    different = 0
    for number in range(seal_unsynced_files(encrypted, FaultyDisk(), History())):
        for keep, seed in WAYS:
            setup, seals = watch(encrypted)
            disk, history = FaultyDisk(), History()
            disk.crash_at(number)
            try:
                seal_unsynced_files(setup, disk, history)
            except Crash:
                pass
            machine = setup.open(disk.reopen(keep, seed=seed), history)
            # A file that is found at a start is sealed before anything else is written.
            machine.commit(machine.mark)
            different += sum(len(texts) > 1 for texts in seals.footers.values())

    assert different > 10


def seal_unsynced_files(setup: Setup, disk: FaultyDisk, history: History) -> int:
    """Fill files without a sync, so that each is sealed first; return how many steps that takes."""
    machine = setup.open(disk, history)
    for _ in range(3):
        machine.commit(partial(machine.publish, 1, 900), machine.mark)
        for _ in range(2):
            machine.commit(partial(machine.publish, 2, 700), sync=False)
    return len(disk.operations)


def test_no_nonce_is_used_twice_when_the_disk_fails(encrypted: Setup) -> None:
    for number in range(0, encrypted.operations(), 3):
        setup, seals = watch(encrypted)
        disk = FaultyDisk()
        disk.fail(Fault(at=number))
        live(disk, setup.open_backend, setup.options, History()).restart()
        assert seals.count > 20


# An attacker who can write to the disk, and has no key


class Forged(NamedTuple):
    """An entry in the place of another one. A test may know the key, to forge a likely one."""

    header: Header
    body: bytes


# From an entry and the file it is in, and how to decrypt it.
Forge = Callable[[Header, bytes, Callable[[], bytes]], Forged]


def forge(data: bytes, slot: int, change: Forge, keyring: Keyring) -> bytes:
    """Return a file with entry `slot` changed and a valid checksum.

    All other entries stay in their places.
    """
    first = read_file_header(lambda at, size: data[at : at + size], len(data), "file")
    assert first is not None
    scan = Scan(lambda position, size: data[position : position + size], len(data))
    for number, (header, position, stored) in enumerate(scan):
        if number == slot:

            def decrypt(header: Header = header, stored: memoryview = stored) -> bytes:
                cipher = keyring.open_cipher(first[1].key_id, first[1].wrapped_key)
                envelope = Envelope(first[0].mark, cipher)
                return bytes(envelope.unseal(header, stored, file="file", position=0))

            new, body = change(header, bytes(stored), decrypt)
            head = pack_header(
                new.kind,
                new.topic,
                [body],
                length=len(body),
                number=new.number,
                synced=new.synced,
                count=new.count,
                mark=new.mark,
                flags=new.flags,
            )
            entry = head + body + padding(len(body))
            end = position + header.size_bytes
            return data[:position] + entry.ljust(header.size_bytes, b"\0") + data[end:]
    raise AssertionError(f"the file has no entry {slot}")


def plain_entry(header: Header, stored: bytes, decrypt: Callable[[], bytes]) -> Forged:
    """Forge an entry that is not encrypted, and valid in every other way."""
    body = plain_body(header.kind, memoryview(decrypt()), len(stored))
    # Behind these there are no other entries.
    is_last = header.kind in (Kind.FOOTER, Kind.MANIFEST, Kind.SNAPSHOT)
    assert len(body) == len(stored) or is_last, f"kind {header.kind}: {len(body)}, {len(stored)}"
    return Forged(header._replace(flags=header.flags & ~ENCRYPTED), body)


def plain_body(kind: int, plain: memoryview, size_bytes: int) -> bytes:
    """Return a valid body with other messages and changes, of the given size where that matters."""
    if kind in BATCH_KINDS:
        return other_messages(plain, size_bytes - len(plain))
    if kind == Kind.CHANGES:
        return bytes(plain).rjust(size_bytes, b"0")
    if kind == Kind.TRANSACTION:
        batches, changes = parse_transaction(plain)
        rows: list[tuple[int, int, Sequence[Buffer]]] = [
            (topic, count, [other_messages(body, 0)]) for topic, count, body in batches
        ]
        changes = changes.rjust(len(changes) + size_bytes - len(plain), b"0")
        return b"".join(encode_transaction(rows, changes))
    if kind == Kind.SNAPSHOT:
        marks, offsets = json.loads(bytes(plain))
        return json.dumps([[*marks, 1_000_000], offsets]).encode()
    return bytes(plain)


def other_messages(body: memoryview, more_bytes: int) -> bytes:
    """Return a batch like another one, with other messages, and so much larger."""
    batch = Batch(body)
    payloads = [payload[:-1] + b"!" for payload in batch.payloads]
    payloads[-1] += b"!" * more_bytes
    forged = Batch(b"".join(encode(payloads)))
    forged.stamp(batch.base_offset, batch.publish_time_ms)
    return forged.to_bytes()


def other_topic(header: Header, stored: bytes, _: object) -> Forged:
    return Forged(header._replace(topic=header.topic ^ 3), stored)


def other_sync(header: Header, stored: bytes, _: object) -> Forged:
    return Forged(header._replace(synced=header.synced + 8), stored)


def other_header(header: Header, stored: bytes, _: object) -> Forged:
    """Change the owner in the header of the file."""
    found = decode_file_header(stored, "file")
    body = encode_file_header(
        msgspec.structs.replace(found, owner="mallory mallory!"[: len(found.owner)])
    )
    return Forged(header, body)


@pytest.mark.parametrize("change", [plain_entry, other_topic, other_sync, other_header])
def test_a_forged_entry_is_detected(encrypted_setup: Setup, change: Forge) -> None:
    disk, history = finished(encrypted_setup)
    noticed = 0
    for what, _, found in forgeries(encrypted_setup, disk, change):
        assert is_noticed(encrypted_setup, found, history), what
        noticed += 1

    assert noticed > 5


def test_a_forged_plain_entry_is_refused_for_nothing_but_being_plain(
    encrypted_setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An envelope that believes plain entries would take each of the forgeries for valid."""
    disk, history = finished(encrypted_setup)
    unseal = Envelope.unseal

    def believe(
        self: Envelope, header: Header, body: memoryview, *, file: str, position: int
    ) -> memoryview:
        if not header.flags & ENCRYPTED:
            return body
        return unseal(self, header, body, file=file, position=position)

    monkeypatch.setattr(Envelope, "unseal", believe)
    kinds = set()
    for what, kind, found in forgeries(encrypted_setup, disk, plain_entry):
        backend = encrypted_setup.open_backend(found.reopen("none"))
        report = check_folder(backend, keyring=encrypted_setup.options.ciphers)
        assert report.problems == [], what
        machine = encrypted_setup.open(found, history)
        assert sum(len(messages) for messages in machine.messages().values()) > 10
        kinds.add(kind)

    assert {Kind.MANIFEST, Kind.SNAPSHOT, Kind.BATCH, Kind.CHANGES, Kind.TRANSACTION} <= kinds
    assert kinds >= {Kind.PART, Kind.FOOTER} or encrypted_setup.open_backend is in_store


def forgeries(
    setup: Setup, disk: FaultyDisk, change: Forge
) -> Iterator[tuple[str, int, FaultyDisk]]:
    """Yield disks with one forged entry each: which one it is, its kind, and the disk."""
    assert setup.options.ciphers is not None
    for name, data in files_in_use(disk).items():
        scan = Scan(lambda at, size: data[at : at + size], len(data))  # noqa: B023
        for slot, (header, _, _) in enumerate(scan):
            if (slot == 0) is (change is other_header):
                forged = forge(data, slot, change, setup.options.ciphers)
                found = disk.reopen("none")
                found.remove(name)
                found.put(name, forged)
                yield f"entry {slot} of {name}", header.kind, found


def files_in_use(disk: FaultyDisk) -> dict[str, bytes]:
    """Return the files that the next start needs, without old documents and fences."""
    files = content(disk)
    newest = {
        max((name for name in files if name.startswith(folder)), default="")
        for folder in ("manifests/", "snapshots/")
    }
    return {
        name: data
        for name, data in files.items()
        if name in newest
        or name.startswith("segments/")
        or (name.startswith("chunks/") and has_entries(data))
    }


def has_entries(data: bytes) -> bool:
    """Tell whether there is an entry behind the header of a file."""
    return len(list(Scan(lambda at, size: data[at : at + size], len(data)))) > 1


def is_noticed(setup: Setup, disk: FaultyDisk, history: History) -> bool:
    """Whether a start, a read or a check reports an error."""
    report = check_folder(setup.open_backend(disk.reopen("none")), keyring=setup.options.ciphers)
    try:
        machine = setup.open(disk, history)
        hurt = unharmed(machine) != set(TOPICS)
    except CorruptedError:
        hurt = True
    return hurt or bool(report.problems)


def test_a_plain_file_in_the_place_of_an_encrypted_one_is_refused(encrypted_setup: Setup) -> None:
    disk, history = finished(encrypted_setup)
    plain_disk, _ = finished(Setup(encrypted_setup.open_backend, log_options()))
    plain = content(plain_disk)
    tried = 0
    for name in files_in_use(disk):
        if name not in plain or name.startswith("manifests/"):
            continue  # Of a plain manifest see the test below.
        found = disk.reopen("none")
        found.remove(name)
        found.put(name, plain[name])
        report = check_folder(
            encrypted_setup.open_backend(found.reopen("none")),
            keyring=encrypted_setup.options.ciphers,
        )
        assert any("not encrypted" in problem.reason for problem in report.problems), name
        assert is_noticed(encrypted_setup, found, history), name
        tried += 1

    assert tried > 3


def test_an_encrypted_file_under_the_name_of_another_is_refused(encrypted_setup: Setup) -> None:
    disk, history = finished(encrypted_setup)
    files = files_in_use(disk)
    tried = 0
    for name in files:
        folder = name.partition("/")[0]
        others = [n for n in files if n != name and n.startswith(folder)]
        for other in others[:2]:
            found = disk.reopen("none")
            found.remove(name)
            found.put(name, files[other])
            assert is_noticed(encrypted_setup, found, history), f"{other} as {name}"
            tried += 1

    assert tried > 3


@pytest.mark.parametrize("open_backend", [on_disk, in_store], ids=["files", "chunks"])
def test_encryption_that_begins_later_covers_every_new_file(
    open_backend: OpenBackend, tmp_path: Path
) -> None:
    plain = Setup(open_backend, log_options())
    disk, history = FaultyDisk(), History()
    live(disk, plain.open_backend, plain.options, history).close()
    before = set(content(disk))
    setup = Setup(open_backend, log_options(FileKeyring.create(tmp_path / "keys.json")))
    for _ in range(3):
        machine = setup.open(disk, history)
        machine.commit(partial(machine.publish, 1, 300), machine.mark)
        machine.checkpoint()
        machine.close()

    assert check(setup.open(disk, history), history.committed) == history.committed
    for name, data in content(disk).items():
        header = read_file_header(lambda at, size: data[at : at + size], len(data), name)  # noqa: B023
        assert header is not None
        assert header[1].key_id or name in before, f"{name} is not encrypted"
