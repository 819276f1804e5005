"""What is done to a ranked list before it is read: order, length. No retrieval here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
