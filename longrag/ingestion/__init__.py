"""From documents to long units: links, sentences, chunks, grouping. No vectors here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
