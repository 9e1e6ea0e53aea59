"""Make text safe to show: escape control characters and hide secrets.

Payloads, names of topics and answers of a broker may contain characters that control a terminal:
they can hide text, fill the clipboard or reverse the order of letters.

The URL of a store or a database may contain a key or a password, which then gets into errors.
"""

import re
from collections.abc import Iterable

# Safe characters that `str.isprintable` rejects: line break, tab, the spaces of typography (French
# uses narrow ones in numbers), the ideographic space of Chinese and Japanese, and the two joiners.
# Persian, the languages of India and emoji of several people need the joiners, which have no width.
_KEPT = frozenset("\n\t\xa0\u2002\u2003\u2009\u202f\u3000\u200c\u200d")

HIDDEN = "***"
# In these URLs a container precedes the `@`: `abfss://container@account.dfs.core.windows.net`.
_CONTAINER_SCHEMES = frozenset({"abfs", "abfss"})
# The placeholder of our own hints is kept.
_PLACEHOLDER = "user:password@host"
# `Path` makes one slash of two.
_SCHEME_END = re.compile(r":/+")
_NO_SCHEME = re.compile(r"[^A-Za-z0-9+.-]")
_WORD = re.compile(r"[^\s'\"`]+")
_PARAMETER = re.compile(r"(?<![\w.-])([\w.-]+)=[^\s&'\"`;,)]+")
_SECRET_NAME = re.compile(
    r"signature|secret|passw(?:or)?d|credential|token|"
    r"(?:access|account|shared|private)[_-]?key|\A(?:sig|sas)\Z",
    re.IGNORECASE,
)

# What to say to somebody who has put them into the URL of an object store.
NO_SECRETS = (
    "credentials and options in the URL are ignored by object stores: set environment variables "
    "instead (AWS_ACCESS_KEY_ID, AZURE_STORAGE_SAS_TOKEN, ...)"
)


def without_secrets(url: str) -> str:
    """Return the URL of a store or a database without credentials.

    The user, the password and everything after a question mark are removed. If these cannot be
    told apart, as in a malformed URL, only the scheme is left.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    user, sign, place = rest.rpartition("@")
    if sign and (":" in user or scheme.lower() not in _CONTAINER_SCHEMES):
        # An `@` in the path, after the host, does not end a user.
        if set("?#") & set(user):
            return f"{scheme}{separator}{HIDDEN}"
        if ":" in user or "/" not in user:
            rest = place
    return f"{scheme}{separator}{re.split(r'[?#]', rest, maxsplit=1)[0]}"


def hide_secrets(text: str) -> str:
    """Return a text, such as the error of a library, with everything hidden that looks secret."""
    # A text may be long and hostile: each step here passes over it once.
    if "@" in text and ":/" in text:
        text = _WORD.sub(_hide_user, text)
    return _PARAMETER.sub(_hide_value, text) if "=" in text else text


def _hide_user(found: re.Match[str]) -> str:
    """Return a word with the user and the password hidden if it is a URL that has them."""
    word = found[0]
    end = _SCHEME_END.search(word)
    if end is None:
        return word
    rest = word[end.end() :]
    # The last `@`: a password may contain slashes, as S3 keys do, and `@` itself.
    user, sign, place = rest.rpartition("@")
    if not sign or rest.startswith(_PLACEHOLDER):
        return word
    # A user alone may be a token. An `@` in the path, after the host, does not end a user.
    before = _NO_SCHEME.split(word[: end.start()])[-1]
    is_user = "/" not in user and before.lower() not in _CONTAINER_SCHEMES
    return f"{word[: end.end()]}{HIDDEN}@{place}" if ":" in user or is_user else word


def _hide_value(found: re.Match[str]) -> str:
    return f"{found[1]}={HIDDEN}" if _SECRET_NAME.search(found[1]) else found[0]


def printable(text: str) -> str:
    """Return text for one line of a terminal.

    Line breaks, control characters and invisible characters are escaped as in a Python literal.
    """
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escape(one) for one in text])


def printable_lines(text: str) -> str:
    """Return text for a terminal, with control characters escaped except line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join([one if _is_shown(one) else _escape(one) for one in text])


def printable_json(text: str) -> str:
    """Return equivalent JSON with control characters escaped."""
    if text.isprintable():
        return text
    return "".join([one if _is_shown(one) else _json_escape(one) for one in text])


def _is_shown(one: str) -> bool:
    return one.isprintable() or one in _KEPT


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode()


def _json_escape(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[slot : slot + 2].hex()}" for slot in range(0, len(units), 2))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is nearest to one with a typing error, or nothing."""
    # Loaded for a mistake only.
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean `{near[0]}`?" if near else ""
