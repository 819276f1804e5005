"""Whether what was saved is as it was written: all of it is read, and what can be is repaired.

What a format is stands with its readers, in the rooms below.
"""
