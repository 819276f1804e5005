"""Language models on vLLM's HTTP server, for token searches."""
