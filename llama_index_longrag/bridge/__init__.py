"""Where LlamaIndex's values and calls meet the core's.

Conversions and answers to requests belong here; no component a user builds does.
"""
