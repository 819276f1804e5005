"""What is built once and searched often. No questions and no prompts here."""
