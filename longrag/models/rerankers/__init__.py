"""Models that score texts against a query, and the protocol they share.

What orders texts by the scores is in ``longrag.refinement``.
"""
