"""Quotes that any model or program wrote: looked up, and refused where a word differs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
