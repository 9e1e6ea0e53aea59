"""Typed access to the keys of one mapping of a pipeline file.

A mistake is added to the remarks and a usable value is returned in its place, so that one mistake
does not hide another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from ister.base import did_you_mean, full_name, parse_pattern, parse_topic
from ister.base.errors import BadNameError
from ister.spark.pipelines.config.positions import ConfigNode, FileLine, Remark
from ister.spark.pipelines.config.variables import Secret, missing_secrets, names_in, substitute

# Rows and bytes of a batch: what fits a signed 64-bit number, which Spark uses.
COUNT_MAX = 2**63 - 1

_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(slots=True)
class Notes:
    """The inputs of reading one pipeline, and the remarks found so far."""

    file: str
    folder: str
    chosen: Mapping[str, str]
    environment: Mapping[str, str]
    remarks: list[Remark] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def mistake(self, origin: FileLine, text: str) -> None:
        """Note something that keeps the pipeline from running."""
        self.remarks.append(Remark(origin, text))

    def warn(self, origin: FileLine, text: str) -> None:
        """Note something that is most likely not meant."""
        self.remarks.append(Remark(origin, text, is_warning=True))

    def put(self, text: str, origin: FileLine) -> str | Secret:
        """Return a text with its variables in place."""
        self.used.update(names_in(text))
        value, mistakes = substitute(
            text, chosen=self.chosen, environment=self.environment, folder=self.folder
        )
        for one in mistakes:
            self.mistake(origin, one)
        return value


class Fields:
    """The keys of one mapping. Keys that are not `known` are noted at once."""

    def __init__(self, node: ConfigNode, *, what: str, known: Sequence[str], notes: Notes) -> None:
        self.what = what
        self.origin = node.origin
        self.is_mapping = node.entries is not None
        self._node = node
        self._notes = notes
        if node.entries is None:
            said = f"{what} is a mapping of {_listed(known)}; this is {node.kind}"
            notes.mistake(node.origin, said)
        for entry in node.entries or ():
            if entry.key not in known:
                said = f"{what} has no key `{entry.key}`{nearest(entry.key, known)}"
                notes.mistake(entry.origin, said)

    def has(self, key: str) -> bool:
        """Whether the key is there, with a value."""
        return self.find(key) is not None

    def find(self, key: str) -> ConfigNode | None:
        """Return the node of a key; one without a value counts as absent."""
        node = self._node.find(key)
        is_empty = node is not None and node.kind == "nothing" and node.given is None
        return None if is_empty else node

    def origin_of(self, key: str) -> FileLine:
        """Return the line of a key, or that of the mapping."""
        for entry in self._node.entries or ():
            if entry.key == key:
                return entry.origin
        return self.origin

    def missing(self, key: str, hint: str) -> None:
        """Note that a key is missing."""
        self._notes.mistake(self.origin, f"{self.what} needs `{key}`: {hint}")

    def mistake(self, key: str, text: str) -> None:
        """Note what is wrong with the value of a key."""
        self._notes.mistake(self.origin_of(key), text)

    def note(self, origin: FileLine, text: str) -> None:
        """Note a mistake somewhere inside this mapping."""
        self._notes.mistake(origin, text)

    def text(self, key: str) -> str | None:
        """Return a text that is no secret."""
        node = self.find(key)
        return None if node is None else self._plain_text(key, node)

    def secret_text(self, key: str) -> str | Secret | None:
        """Return a text that may be a secret."""
        node = self.find(key)
        return None if node is None else self._any_text(key, node)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; one text is a list of one."""
        node = self.find(key)
        if node is None:
            return ()
        nodes = (node,) if node.items is None else node.items
        found = [self._plain_text(key, one) for one in nodes]
        if not found:
            self.mistake(key, f"`{key}` is an empty list")
        return tuple(text for text in found if text is not None)

    def count(self, key: str) -> int | None:
        """Return a whole number from 1 on. A text of digits counts, as a variable is one."""
        node = self.find(key)
        if node is None:
            return None
        value: object = node.scalar
        if isinstance(value, str):
            value = self._plain_text(key, node)
            if value is None:
                return None
            digits = value.replace("_", "").strip()
            value = int(digits) if digits.isdecimal() and len(digits) < 20 else value
        if isinstance(value, bool) or not isinstance(value, int):
            shown = f"`{value}`" if isinstance(value, str | float) else node.kind
            self.mistake(key, f"`{key}` is a whole number, as in 100000; this is {shown}")
            return None
        if not 1 <= value <= COUNT_MAX:
            self.mistake(key, f"`{key}` is at least 1; this is {value}")
            return None
        return value

    def flag(self, key: str) -> bool:
        """Return true or false."""
        node = self.find(key)
        if node is None:
            return False
        value: object = node.scalar
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(self._plain_text(key, node) or "")
        if not isinstance(value, bool):
            self.mistake(key, f"`{key}` is true or false; this is {node.kind}")
            return False
        return value

    def choice(self, key: str, choices: type[_Choice], default: _Choice) -> _Choice:
        """Return one of a few words."""
        text = self.text(key)
        if text is None:
            return default
        words = [one.value for one in choices]
        if text not in words:
            said = f"`{key}` is {_listed(words, last='or')}; this is `{text}`"
            self.mistake(key, said + did_you_mean(text, words))
            return default
        return choices(text)

    def topic(self, key: str) -> str | None:
        """Return the name of a topic."""
        text = self.text(key)
        return None if text is None else self.check_topic(key, text)

    def check_topic(self, key: str, text: str) -> str | None:
        """Return a topic's name, or note what is wrong with it."""
        try:
            return parse_topic(full_name(text))
        except BadNameError as error:
            hint = "; several topics by a wildcard are `pattern:`" if "*" in text else ""
            self.mistake(key, f"`{text}` is no topic: {error.reason}{hint}")
            return None

    def pattern(self, key: str) -> str | None:
        """Return a pattern of topics."""
        text = self.text(key)
        try:
            return None if text is None else parse_pattern(full_name(text))
        except BadNameError as error:
            self.mistake(key, f"`{text}` is no pattern: {error.reason}")
            return None

    def pairs(self, key: str) -> Mapping[str, str | Secret]:
        """Return a mapping of words to texts, which may be secrets. Numbers become texts."""
        node = self.find(key)
        if node is None:
            return MappingProxyType({})
        if node.entries is None:
            self.mistake(key, f"`{key}` is a mapping of names to values; this is {node.kind}")
            return MappingProxyType({})
        found: dict[str, str | Secret] = {}
        for entry in node.entries:
            value = self._pair_value(f"{key}.{entry.key}", entry.value)
            if value is not None:
                found[entry.key] = value
                self._check_open_secret(entry.key, value, entry.origin)
        return MappingProxyType(found)

    def plain_pairs(self, key: str) -> Mapping[str, str]:
        """Return a mapping of words to texts that are no secrets."""
        found: dict[str, str] = {}
        for word, value in self.pairs(key).items():
            if isinstance(value, Secret):
                self.mistake(key, f"`{key}.{word}` takes no secret")
            else:
                found[word] = value
        return MappingProxyType(found)

    def items(self, key: str) -> Iterator[ConfigNode]:
        """Yield the items of a list."""
        node = self.find(key)
        if node is None:
            return
        if node.items is None:
            said = f"`{key}` is a list, each item after a dash; this is {node.kind}"
            self.mistake(key, said)
            return
        yield from node.items

    def named(self, key: str) -> Iterator[tuple[str, ConfigNode, FileLine]]:
        """Yield the entries of a mapping from names to mappings."""
        node = self.find(key)
        if node is None:
            return
        if node.entries is None:
            self.mistake(key, f"`{key}` is a mapping from names; this is {node.kind}")
            return
        for entry in node.entries:
            yield entry.key, entry.value, entry.origin

    def _plain_text(self, key: str, node: ConfigNode) -> str | None:
        value = self._any_text(key, node)
        if isinstance(value, Secret):
            said = f"`{key}` takes no secret: `broker`, `token`, `options` and `settings` do"
            self._notes.mistake(node.origin, said)
            return None
        return value

    def _any_text(self, key: str, node: ConfigNode) -> str | Secret | None:
        if not isinstance(node.scalar, str) or node.given is not None:
            hint = ": put it in quotes" if node.entries is None and node.items is None else ""
            self._notes.mistake(node.origin, f"`{key}` is a text; this is {node.kind}{hint}")
            return None
        value = self._notes.put(node.scalar, node.origin)
        for one in missing_secrets(value) if isinstance(value, Secret) else ():
            self._notes.mistake(node.origin, f"`{key}` refers to a secret that is not here: {one}")
        return value

    def _pair_value(self, key: str, node: ConfigNode) -> str | Secret | None:
        match node.scalar:
            case bool():
                return "true" if node.scalar else "false"
            case int() | float():
                return str(node.scalar)
        return self._any_text(key, node)

    def _check_open_secret(self, word: str, value: str | Secret, origin: FileLine) -> None:
        last = word.lower().rpartition(".")[2]
        if isinstance(value, str) and last.endswith(("token", "password", "secret")):
            said = (
                f"`{word}` is here for everybody who reads this file: write "
                "`${file:PATH}` or `${env:NAME}`"
            )
            self._notes.warn(origin, said)


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `, did you mean ...?`, or what there is, for a word that is not known."""
    return did_you_mean(word, known) or (f"; there is {_listed(known)}" if known else "")


def _listed(words: Sequence[str], last: str = "and") -> str:
    shown = [f"`{word}`" for word in words]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {last} {shown[-1]}"
