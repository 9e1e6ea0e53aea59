"""Golden files: bytes as lines of sixteen in hexadecimal, so that a change shows in a diff."""

from pathlib import Path

FOLDER = Path(__file__).parent / "bytes"


def read(name: str) -> bytes:
    """Return the bytes of a golden file."""
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text(encoding="ascii"))


def write(name: str, data: bytes) -> None:
    """Replace a golden file."""
    lines = [data[start : start + 16].hex(" ") for start in range(0, len(data), 16)]
    (FOLDER / f"{name}.hex").write_text("\n".join(lines) + "\n", encoding="ascii")


def names() -> set[str]:
    """Return the names of the golden files there are."""
    return {path.stem for path in FOLDER.glob("*.hex")}
