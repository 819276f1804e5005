"""Small protocols for what the outside provides, and local backends that need no key."""
