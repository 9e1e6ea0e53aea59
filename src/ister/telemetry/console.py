"""The `rich` console for tables, bars and live views, with control characters escaped."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from ister.base import printable_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment


def make_console(*, stderr: bool = False, width: int | None = None) -> "Console":
    """Return a console that escapes control characters.

    Texts are not parsed as markup: a name that a client chose must not become a style or a link.
    """
    return console_class()(stderr=stderr, width=width, highlight=False, markup=False)


@cache
def console_class() -> "type[Console]":
    """Return the console class. Imports `rich`, which takes 70 ms and most commands do not need."""
    from rich.console import Console
    from rich.segment import Segment

    class EscapingConsole(Console):
        """Escape the text of all segments, except control segments, which `rich` itself makes."""

        def _render_buffer(self, buffer: "Iterable[Segment]") -> str:
            return super()._render_buffer(
                one if one.control else Segment(printable_lines(one.text), one.style)
                for one in buffer
            )

    return EscapingConsole
