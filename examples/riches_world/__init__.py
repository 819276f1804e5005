"""A world of invented facts and a small language model that remembers an outdated state of it."""
