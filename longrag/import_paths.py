"""Objects of a user's code by their import paths, ``module:name``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longrag.errors import InvalidParameterError


def import_object(parameter: str, path: str) -> Any:
    """Return what ``module:name`` names; modules of the current folder are found last.

    The current folder is searched after all else, and only until the module is imported: what this
    package or another imports later is not taken from it. A module there that imports another one
    of the folder inside a function finds it where ``PYTHONPATH`` names the folder.

    Args:
        parameter: the parameter that holds the path, for the error.
        path: the module, a colon, and a name in it.

    Raises:
        InvalidParameterError: there is no such module, or no such name in it.
    """
    module, _, name = path.partition(":")
    try:
        with _current_folder_last():
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidParameterError.because(
            f"No {parameter} can be imported from {path!r}, which must be MODULE:NAME: {error}"
        ) from error
    return found


@contextmanager
def _current_folder_last() -> Iterator[None]:
    folder = str(Path.cwd())
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
