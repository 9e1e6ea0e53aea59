"""Sizes and time spans as people write and read them."""

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_SIZE_UNITS: dict[str, int] = {
    "b": 1,
    **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)},
    **{f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)},
}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SPAN_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

# From the largest: what a rounded text is given in.
_ROUND_SIZES = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_ROUND_SPANS = (("d", 86_400), ("h", 3_600), ("m", 60))


def parse_size(text: str) -> int:
    """Return the bytes of `2097152`, `512KiB`, `2MiB` or `1.5GB`, or raise `ValueError`."""
    found = _SIZE.fullmatch(text.strip().replace("_", ""))
    if found is None:
        raise ValueError("is no size: write bytes, or a unit as in 512KiB or 2MiB")
    return round(float(found[1]) * _SIZE_UNITS[(found[2] or "B").lower()])


def parse_span(text: str) -> float:
    """Return the seconds of `30`, `500ms`, `30s`, `5m`, `1h` or `7d`, or raise `ValueError`."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError("is no time span: write seconds, or a unit as in 500ms, 30s, 5m, 7d")
    return float(found[1]) * _SPAN_UNITS[found[2] or "s"]


def size_text(size_bytes: int) -> str:
    """Return a size exactly: in the largest unit that leaves a whole number."""
    for unit, factor in _ROUND_SIZES:
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"


def span_text(milliseconds: float) -> str:
    """Return a time span exactly: in the largest unit that leaves a whole number; `0` for none."""
    for unit, factor in _ROUND_SPANS:
        if milliseconds and milliseconds % (factor * 1000) == 0:
            return f"{milliseconds // (factor * 1000):.0f}{unit}"
    if abs(milliseconds) >= 1_000:
        return f"{milliseconds / 1000:.15g}s"
    return f"{milliseconds:.15g}ms" if milliseconds else "0"


def limit_text(name: str, value: object) -> str:
    """Return the value of a setting whose name ends with its unit: `5d` for `max_age_ms`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_ms"):
            return span_text(value)
        if "bytes" in name and isinstance(value, int):
            return size_text(value) if value else "0"
    return str(value)


def span_hint(given: object, *, takes_timedelta: bool = False) -> str:
    """Return how `7d` is written in Python, after a colon; nothing for what is not such a text."""
    try:
        seconds = parse_span(given) if isinstance(given, str) else None
    except ValueError:
        return ""
    if seconds is None:
        return ""
    hint = f": write {seconds:.15g}"
    if not takes_timedelta:
        return hint
    parts = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
    unit, factor = next(one for one in parts.items() if seconds % one[1] == 0 or one[1] == 1)
    return f"{hint}, or timedelta({unit}={seconds / factor:.15g})"


def rounded_size(size_bytes: int) -> str:
    """Return about how large something is: `1.4 GiB`."""
    for unit, factor in _ROUND_SIZES:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


def rounded_span(milliseconds: int) -> str:
    """Return about how long something took: `350ms`, `12.0s`, `2.5h`."""
    if milliseconds < 1_000:
        return f"{milliseconds}ms"
    seconds = milliseconds / 1_000
    for unit, factor in _ROUND_SPANS:
        if seconds >= factor:
            return f"{seconds / factor:.1f}{unit}"
    return f"{seconds:.1f}s"
