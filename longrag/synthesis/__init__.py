"""From units to an answer: prompts filled, answers parsed, a reader that needs no model."""
