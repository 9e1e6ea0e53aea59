"""`ister keys`: the key file for encryption at rest."""

from errno import ENOENT
from pathlib import Path
from typing import Annotated

import typer

from ister.base.errors import BadRequestError
from ister.cli.console.terminal import JsonOption, YesOption, confirm, say, write, write_json

keys = typer.Typer(
    no_args_is_help=True, help="Make, rotate and retire keys for encryption at rest."
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The key file.")]


@keys.command("create")
def create(file: FileArgument) -> None:
    """Make a key file with one new key, for `ister serve --key-file`.

    Keep a copy in a safe place that is not the data folder: without it the data is lost.

    \b
    Example:
      ister keys create keys.json
    """
    from ister.objects import FileKeyring

    try:
        keyring = FileKeyring.create(file)
    except FileExistsError:
        raise BadRequestError(
            f"{file} exists, and keys are never replaced: `ister keys rotate` adds one"
        ) from None
    except FileNotFoundError:
        raise FileNotFoundError(ENOENT, f"there is no folder {file.parent}", str(file)) from None
    say(f"key {keyring.ids[-1]} is in {file}: keep a copy of it, away from the data")


@keys.command("rotate")
def rotate(file: FileArgument) -> None:
    """Add a key: every journal file begun from now on uses it, also of brokers that run.

    Older keys stay in the file, because older data needs them. No data is rewritten: `ister storage
    reencrypt` does that.

    \b
    Example:
      ister keys rotate keys.json
    """
    from ister.objects import FileKeyring

    key_id = FileKeyring.open(file).rotate()
    say(f"key {key_id} is in {file}, for journal files begun from now on: renew your copy of it")


@keys.command("remove")
def remove(
    file: FileArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The id of a key.")],
    yes: YesOption = False,
) -> None:
    """Remove a key that nothing is encrypted with any more; asks first.

    `ister storage keys` shows what is encrypted with each key, `ister storage reencrypt` rewrites
    it under the newest one. Keep a copy of the key as long as there are backups that need it.

    \b
    Example:
      ister keys remove keys.json 5f0c3a19
    """
    from ister.objects import FileKeyring

    keyring = FileKeyring.open(file)
    confirm(f"what is encrypted with key {key} cannot be read without it", yes=yes)
    keyring.remove(key)
    say(f"key {key} is removed from {file}")


@keys.command("list")
def list_keys(file: FileArgument, as_json: JsonOption = False) -> None:
    """List the ids of the keys, the newest last. Keys themselves are never shown.

    \b
    Example:
      ister keys list keys.json --json
    """
    from ister.objects import FileKeyring

    ids = FileKeyring.open(file).ids
    if as_json:
        write_json({"file": str(file), "keys": ids, "newest": ids[-1]})
    else:
        write("".join(f"{one}\n" for one in ids).encode())
