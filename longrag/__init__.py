"""Long-context retrieval: the algorithms, free of any framework.

``llama_index_longrag`` and ``langchain_longrag`` are the drop-in components; this package holds
what they share. Each folder stands where text is on its way from corpus to answer: ``ingestion``,
``indexing``, ``retrieval``, ``synthesis``.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def lazily(
    names: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package imported as it is used (PEP 562).

    Such a package costs next to nothing to import, and a name of it only the modules it needs.
    A name must not also be that of a module of the package, which would take its place.

    Args:
        names: the package's ``globals()``, where a name is kept once it was asked for.
        modules: for each module of the package its public names, separated by spaces.
    """
    package = names["__name__"]
    module_of = {name: module for module, public in modules.items() for name in public.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        names[name] = getattr(import_module(f"{package}.{module_of[name]}"), name)
        return names[name]

    return get, lambda: sorted({*names, *module_of})
