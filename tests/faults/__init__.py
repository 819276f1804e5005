"""Faults of processes, restores and networks, tried for real on indexes in a database.

Workers are processes that hold open indexes and do what a test tells them, one thing after another
or all at once; ``histories`` says what they must see.
"""
