"""Converts LlamaIndex's values and calls to the core's and back.

Conversions and answers to requests belong here; components that users build do not.
"""
