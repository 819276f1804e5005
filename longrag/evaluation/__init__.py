"""How good answers and rankings are: metrics of one question, and means with their intervals.

Metrics belong here, and what runs a whole evaluation over any other part of the core. They are pure
functions of texts and ids, so they also score what other systems produced; nothing in the core
imports this package.
"""

from longrag.evaluation import metrics

__all__ = ["metrics"]
