"""What both adapters need and neither framework owns.

A framework's own base classes, callbacks, streaming and value types stay in its adapter; the rest
is written here once. Nothing here imports a framework.
"""
