"""An index file as a server of the Model Context Protocol, which agents ask as a tool.

It only reads. What the tools do is in ``tools``, free of the protocol; ``server`` says it in the
terms of the official SDK, and ``http`` decides who may ask.
"""
