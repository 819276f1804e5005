"""Vector stores of others: what each can do, one search over any, and what checks them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
