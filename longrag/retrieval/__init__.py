"""From a question to units: ranking, exclusion, budgets. No text is written here."""
