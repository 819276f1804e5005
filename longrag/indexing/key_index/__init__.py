"""The corpus as a constraint on decoding: which tokens may follow, and where a key is from.

Arrays and searches over token ids belong here; what asks a language model does not.
"""
