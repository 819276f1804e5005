"""One HTML file in which an index is looked at: its tree, its units, and a question's way.

The file holds its data and one script, asks nothing of a network, and shows text only as text.
"""

from longrag.explorer.page import Explorer, explore

__all__ = ["Explorer", "explore"]
