"""What is built once and searched often: vectors, trees, keys to decode. No questions here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
