"""Language models of transformers, stepped by a search, and what they keep of prefixes.

Importing a module of this room does not import torch; making a model does.
"""
