"""From units to an answer: prompts filled, answers parsed, a reader that needs no model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
