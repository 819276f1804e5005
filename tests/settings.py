"""Settings by their names, put into the objects that trees and their searches take."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from longrag.calls import CallSettings
from longrag.indexing import TreeSettings
from longrag.retrieval import TreeSearchSettings
from longrag.types import Tokenize

_KINDS: dict[str, Any] = {
    "tree": TreeSettings,
    "calls": CallSettings,
    "search": TreeSearchSettings,
}


def grouped(**settings: Any) -> dict[str, Any]:
    """Return the settings, those of an object in it: in the one that is given, or in a new one."""
    for parameter, kind in _KINDS.items():
        own = {one.name for one in fields(kind)} & settings.keys()
        if own:
            made = settings.get(parameter) or kind()
            settings[parameter] = replace(made, **{name: settings.pop(name) for name in own})
    return settings


def counting(kind: str, tokenizer: Tokenize) -> dict[str, Any]:
    """Return the setting by which an index of a kind counts tokens."""
    if kind == "RaptorIndex":
        return {"tree": TreeSettings(tokenizer=tokenizer)}
    return {"tokenizer": tokenizer}
