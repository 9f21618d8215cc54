# The first code of the `ingle` command. Importing the rest takes a while, in which Ctrl-C must not print a traceback.
"""``main``: the entry point."""

import os
import signal
from types import FrameType


def main() -> None:
    """Never returns: ends the process with the command's exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where somebody wishes it ignored
        signal.signal(signal.SIGINT, _leave)
    from ingle.cli import app

    app.main()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(130)  # nothing has been written or begun; `app.main` puts its own handler in this one's place


if __name__ == "__main__":
    main()
