"""From a question to documents: rankings, gates, and what changes a query before it is searched."""
