"""From a question to units: ranking, exclusion, budgets. No text is written here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
