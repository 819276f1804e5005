"""Language models behind vLLM's HTTP server, stepped by a search."""
