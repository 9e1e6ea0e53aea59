"""Variables of a pipeline file, and secrets by reference.

- `${NAME}` and `${NAME:-default}` come from `--set`, then from the environment, and are put in
  place when the file is read. `$${` is a plain `${`.
- `${file:PATH}` and `${env:NAME}` are secrets: the file keeps the reference, and only whoever
  needs the value asks for it, with `reveal`. Text, `repr` and pickles hold the reference.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# A token, a password, a PEM file with its chain: all far below. More is the wrong file.
SECRET_BYTES_MAX = 64 * 1024

# To hide less would make a riddle of every message with a `1` in it, and is no secret.
HIDDEN_CHARACTERS_MIN = 4

_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?:(?P<kind>file|env):(?P<place>[^}]*)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?|(?P<wrong>[^}]*))(?P<end>\}?)"
)


@dataclass(frozen=True, slots=True)
class Secret:
    """A text with references to secrets in it: `${file:/run/secrets/token}`.

    `folder` is where relative paths are looked for. `str` and `repr` show the reference.
    """

    reference: str
    folder: str = ""

    def __str__(self) -> str:
        return self.reference

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"

    def reveal(self) -> str:
        """Return the text with the values in place, read now.

        A file's last line break is no part of its value. Raises `LookupError` with a text that
        says which reference cannot be followed.
        """
        return _REFERENCE.sub(self._value, self.reference)

    def hidden(self, text: str) -> str:
        """Return a text with the references in place of the values that it has in it."""
        for found in _REFERENCE.finditer(self.reference):
            value = ""
            if found["kind"] is not None:
                with suppress(LookupError):
                    # Spark's options are used without what is around them.
                    value = self._value(found).strip()
            if len(value) >= HIDDEN_CHARACTERS_MIN:
                text = text.replace(value, found[0])
        return text

    def _value(self, found: re.Match[str]) -> str:
        if found["kind"] is None:
            return "${"
        if found["kind"] == "env":
            if found["place"] not in os.environ:
                raise LookupError(f"the environment has no {found['place']}")
            return os.environ[found["place"]]
        path = Path(self.folder, found["place"])
        try:
            with path.open("rb") as file:
                data = file.read(SECRET_BYTES_MAX + 1)
            if len(data) > SECRET_BYTES_MAX:
                raise LookupError(f"{path} is over {SECRET_BYTES_MAX:,} bytes: no secret is")
            return data.decode().removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise LookupError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise LookupError(f"{path} is no text in UTF-8") from None


def substitute(
    text: str,
    *,
    chosen: Mapping[str, str],
    environment: Mapping[str, str],
    folder: str = "",
) -> tuple[str | Secret, list[str]]:
    """Return a text with its variables in place, and what is wrong with its references.

    `chosen` wins over `environment`. A text that refers to secrets comes back as a `Secret` whose
    variables are in place; whether the secrets are there, only `missing_secrets` tells.
    """
    mistakes: list[str] = []
    has_secrets = any(found["kind"] for found in _REFERENCE.finditer(text))

    def value(found: re.Match[str]) -> str:
        if found[0] == "$${":
            # In a secret the escape stays: `reveal` takes it away, once.
            return "$${" if has_secrets else "${"
        if not found["end"]:
            mistakes.append(f"`{found[0][:40]}` has no closing brace; a plain `${{` is `$${{`")
            return found[0]
        if found["kind"]:
            if not found["place"]:
                mistakes.append(f"`{found[0]}` names nothing: `${{file:PATH}}`, `${{env:NAME}}`")
            return found[0]
        name = found["name"]
        if name is None:
            mistakes.append(f"`{found[0][:40]}` is no variable: write ${{NAME}} or ${{NAME:-text}}")
            return found[0]
        for values in (chosen, environment):
            if name in values:
                # A value is text, never a reference: whoever sets it may not reach for files.
                return values[name].replace("${", "$${") if has_secrets else values[name]
        if found["default"] is None:
            mistakes.append(
                f"variable {name} has no value: give it with `--set {name}=...` or in the "
                f"environment, or a default with `${{{name}:-...}}`"
            )
            return ""
        return found["default"]

    result = _REFERENCE.sub(value, text)
    return (Secret(result, folder) if has_secrets else result), mistakes


def names_in(text: str) -> set[str]:
    """Return the names of the variables of a text."""
    return {found["name"] for found in _REFERENCE.finditer(text) if found["name"]}


def missing_secrets(secret: Secret) -> list[str]:
    """Return what of a secret cannot be had on this machine; the value itself is not kept."""
    try:
        secret.reveal()
    except LookupError as error:
        return [str(error.args[0])]
    return []
