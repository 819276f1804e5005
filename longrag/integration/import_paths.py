"""Objects of a user's code by their import paths, ``module:name``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from longrag.errors import InvalidParameterError


def import_object(parameter: str, path: str, allowed: str) -> Any:
    """Return what ``module:name`` names; modules of the current folder are found.

    Args:
        parameter: the parameter that holds the path, for the error.
        path: the module, a colon, and a name in it.
        allowed: what the parameter may be, for the error.

    Raises:
        InvalidParameterError: there is no such module, or no such name in it.
    """
    module, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidParameterError(parameter, path, allowed, f"{error}") from error
    return found
