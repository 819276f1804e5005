"""``longrag check-store``: the suite for stores over a store of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

from longrag.errors import InvalidParameterError
from longrag.integration.import_paths import import_object
from longrag.integration.store_checks import as_table, check_store, is_store_under_test

GROUP: Final = "longrag.stores"
"""The entry points by which an adapter tells how its stores are checked: one a framework."""


def check_named_store(framework: str, factory: str) -> bool:
    """Check the store that a function makes, print the results, and return whether all passed.

    Args:
        framework: the name of an adapter's entry point, ``"llama-index"`` or ``"langchain"``.
        factory: ``"module:function"``. The function returns a new, empty store; one for LangChain
            takes the embedding model that the store is to use.

    Raises:
        InvalidParameterError: there is no such adapter or function.
    """
    adapters = {found.name: found for found in entry_points(group=GROUP)}
    if framework not in adapters:
        raise InvalidParameterError(
            "framework",
            framework,
            f"one of {sorted(adapters)}",
            "Install longrag with the extra of the framework.",
        )
    allowed = "module:function, a function that returns an empty store"
    make = import_object("factory", factory, allowed)
    adapter: Callable[[Callable[..., Any]], Any] = adapters[framework].load()
    results = check_store(adapter(make))
    print(as_table({factory: results}))  # noqa: T201 - it is a command's output
    return all(one.passed for one in results)


def wrap_unless_ready(made: Any, wrap: Callable[[Any], Any]) -> Any:
    """Return what a function made if it can be checked as it is, or else wrapped."""
    return made if is_store_under_test(made) else wrap(made)
