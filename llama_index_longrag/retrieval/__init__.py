"""From a question to nodes: rankings, gates, and what changes a query before it is searched."""
