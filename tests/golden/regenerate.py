"""Write the golden files anew. See `test_golden_bytes.py` for when that is right."""

from tests.golden.cases import build_all
from tests.golden.files import FOLDER, names, write


def main() -> None:
    """Write every file, and remove those that have no case any more."""
    FOLDER.mkdir(exist_ok=True)
    built = build_all()
    for name, data in built.items():
        write(name, data)
    for name in names() - built.keys():
        (FOLDER / f"{name}.hex").unlink()
    print(f"{len(built)} golden files written: review the difference")


if __name__ == "__main__":
    main()
