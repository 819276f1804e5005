"""What changes: documents that come and go, what is saved of them, trees and journals."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
