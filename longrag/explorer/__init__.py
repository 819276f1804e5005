"""One HTML file in which an index is looked at: its tree, its units, and a question's way.

The file holds its data and one script, asks nothing of a network, and shows text only as text.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
