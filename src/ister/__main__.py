"""`python -m ister` is the `ister` command."""

from ister.cli import main

if __name__ == "__main__":
    main()
