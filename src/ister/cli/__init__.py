"""The `ister` command: thin over the SDK. Data goes to stdout, words go to stderr."""

from ister.cli.start import main

__all__ = ["main"]
