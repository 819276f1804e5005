"""The command ``longrag``, also as ``python -m longrag``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from longrag.cli.parser import parse
from longrag.errors import LongragError

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    It is 0; or 1 where nothing was found or a check failed; or 2 for input that cannot be used; or
    130 for a run that was interrupted.
    """
    # Libraries that load weights would draw bars into what is asked to be quiet.
    os.environ.setdefault("TQDM_DISABLE", "1")
    # numba would take these from a file in the current folder, and run the machine code it kept.
    for name in ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES"):
        os.environ.setdefault(name, "")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Documents hold characters that a console may not know.
            stream.reconfigure(errors="replace")
    try:
        return _run(arguments)
    except LongragError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has seen enough.
        _silence()
        return 0
    except OSError as error:
        try:
            # What could not be printed is gone, so that flushing alone does not tell.
            print(flush=True)
        except OSError:
            _silence()
            print("error: what is printed cannot be written:", error.strerror, file=sys.stderr)
            return 2
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    # Imports take a while, in which a run may be interrupted too.
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        status: int = options.run(options)
    finally:
        # A version is printed by what ends the run.
        sys.stdout.flush()
    return status


def _silence() -> None:
    """Let go what could not be printed: the interpreter flushes once more as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
