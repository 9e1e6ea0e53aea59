"""A bar of how far a command is with files, on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ister.cli.console.terminal import stderr_console


@contextmanager
def show_progress(size_bytes: int | None) -> Iterator[Callable[[str, int], None]]:
    """Show a bar on a terminal; yields what to call with a file and what of it is begun."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=stderr_console(), transient=True) as bar:
        task = bar.add_task("", total=size_bytes)
        begun = 0

        def advance(name: str, file_bytes: int) -> None:
            nonlocal begun
            # What was begun before this one is done.
            bar.update(task, description=name, completed=begun)
            begun += file_bytes

        yield advance
