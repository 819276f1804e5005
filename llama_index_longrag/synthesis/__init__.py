"""From retrieved units to an answer: the two-turn reader."""
