"""Small protocols for what the outside provides, and local backends that need no key."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
