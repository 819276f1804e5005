"""Language models of transformers for token searches, with caches of prefixes.

Importing a module of this folder does not import torch; making a model does.
"""
