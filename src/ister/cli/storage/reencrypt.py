"""`ister storage keys` and `ister storage reencrypt`: the keys in use, and retiring one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ister.base import rounded_size
from ister.cli.console.progress import show_progress
from ister.cli.console.terminal import JsonOption, counted, say, write_json, write_table
from ister.cli.storage.homes import (
    TierOption,
    backend_of,
    find_home,
    open_verified,
    owned,
    told_place,
)

if TYPE_CHECKING:
    from ister.log import KeyUse
    from ister.objects import FileKeyring

PlaceArgument = Annotated[
    str, typer.Argument(metavar="DIR|URL", help="A data folder, or the URL of --object-store.")
]
KeyFileOption = Annotated[
    Path,
    typer.Option(metavar="FILE", envvar="ISTER_KEY_FILE", help="The key file of the broker."),
]


class _Row(NamedTuple):
    """A key in a listing."""

    # Empty: not encrypted.
    key: str
    # "newest", "used", "unused" or "missing" (in the key file).
    state: str
    files: int
    size_bytes: int


def list_used_keys(
    place: PlaceArgument,
    key_file: KeyFileOption,
    tier: TierOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the keys that streams are encrypted with, and how much is under each. Changes nothing.

    The broker may run. A key that nothing is under is not needed for this data folder or object
    store. `ister storage reencrypt` moves everything to the newest key.

    \b
    Examples:
      ister storage keys /var/lib/ister --key-file keys.json
      ister storage keys s3://bucket/ister --key-file keys.json --json
    """
    from ister.log import find_keys
    from ister.objects import FileKeyring

    keyring = FileKeyring.open(key_file)
    keys = find_keys(
        backend_of(find_home(place)), keyring=keyring, remote=open_verified(tier) if tier else None
    )
    rows = _rows(keys, keyring)
    if as_json:
        write_json({"place": told_place(place), "keys": [row._asdict() for row in rows]})
        return
    write_table(
        ("KEY", "STATE", "FILES", "SIZE"),
        [(r.key or "not encrypted", r.state, r.files, rounded_size(r.size_bytes)) for r in rows],
    )


def reencrypt_place(
    place: PlaceArgument,
    key_file: KeyFileOption,
    tier: TierOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rewrite streams that are under an older key, so that the key can be retired.

    Stop the broker first; one that runs on an object store loses it to this command. Run `ister
    keys rotate` before. Everything that is not under the newest key of the key file is rewritten,
    a segment at a time: the disk needs room for one. A run that was interrupted is continued by the
    next one. Backups keep the keys that they were made with.

    \b
    Examples:
      ister keys rotate keys.json
      ister storage reencrypt /var/lib/ister --key-file keys.json
      ister storage reencrypt s3://bucket/ister --key-file keys.json
    """
    from ister.log import LogOptions, find_keys
    from ister.objects import FileKeyring
    from ister.server import Reencryption, has_other_keys, reencrypt

    keyring = FileKeyring.open(key_file)
    home, remote = find_home(place), open_verified(tier) if tier else None
    with owned(home):
        backend = backend_of(home)
        before = find_keys(backend, keyring=keyring, remote=remote)
        done = Reencryption(before)
        if has_other_keys(before, keyring):
            size_bytes = sum(
                use.size_bytes for key, use in before.items() if key != keyring.ids[-1]
            )
            say(f"rewriting {rounded_size(size_bytes)} under key {keyring.ids[-1]}")
            options = LogOptions(ciphers=keyring, accept_plain=False, remote=remote)
            with show_progress(size_bytes) as advance:
                done = reencrypt(backend, options, keyring, on_progress=advance)
    if as_json:
        write_json(
            {
                "place": told_place(place),
                "segments": done.segments,
                "written_bytes": done.written_bytes,
                "keys": [row._asdict() for row in _rows(done.keys, keyring)],
            }
        )
        return
    say(
        f"{told_place(place)}: {counted(done.segments, 'segment')} rewritten, "
        f"{rounded_size(done.written_bytes)}; everything is under key {keyring.ids[-1]}"
    )
    unused = [key for key in keyring.ids if key not in done.keys and key != keyring.ids[-1]]
    for key in unused:
        say(f"key {key} is no longer used here: it can be removed from {key_file}")
    if unused:
        say("note: backups made before need these keys, and so does what other brokers store")


def _rows(keys: "Mapping[str, KeyUse]", keyring: "FileKeyring") -> list[_Row]:
    """Return the keys of the key file and those that data is under, the newest last."""
    from ister.log import KeyUse

    ids = [*(key for key in keys if key not in keyring.ids), *keyring.ids]
    return [_Row(key, _state(key, keys, keyring), *keys.get(key, KeyUse())) for key in ids]


def _state(key: str, keys: "Mapping[str, KeyUse]", keyring: "FileKeyring") -> str:
    if key == keyring.ids[-1]:
        return "newest"
    if key and key not in keyring.ids:
        return "missing"
    return "used" if key in keys else "unused"
