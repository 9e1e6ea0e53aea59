"""`ister keys`: the key file for encryption at rest."""

from pathlib import Path
from typing import Annotated

import typer

from ister.base.errors import BadRequestError
from ister.cli.terminal import JsonOption, say, write, write_json

keys = typer.Typer(no_args_is_help=True, help="Make and rotate keys for encryption at rest.")

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
        raise BadRequestError(f"{file}: there is no folder {file.parent}") from None
    say(f"key {keyring.ids[-1]} is in {file}: keep a copy of it, away from the data")


@keys.command("rotate")
def rotate(file: FileArgument) -> None:
    """Add a key: every journal file begun from now on uses it, also of brokers that run.

    Older keys stay in the file, because older data needs them. No data is rewritten.

    \b
    Example:
      ister keys rotate keys.json
    """
    from ister.objects import FileKeyring

    key_id = FileKeyring.open(file).rotate()
    say(f"key {key_id} is in {file}, for journal files begun from now on: renew your copy of it")


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
