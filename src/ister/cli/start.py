"""Where the `ister` command begins: before anything that takes long to load."""

import gc
import sys


def main() -> None:
    """Run the command line and end the process with its exit code."""
    # Loading makes objects that stay; looking through them for garbage takes 20 ms.
    gc.disable()
    _load_structlog()
    from ister.cli.app import run

    run()


def _load_structlog() -> None:
    """Load structlog without rich, which it takes along for tracebacks that we never show.

    That is 70 ms of every start. Who wants rich later gets it.
    """
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        try:
            import structlog  # noqa: F401
        finally:
            del sys.modules["rich"]
