"""The command ``longrag``: one module for each subcommand, and what they share.

A module has ``add(commands)``, which describes its arguments and names the function that runs it.
Nothing here decides how text is found; that is the business of the rooms below.
"""
