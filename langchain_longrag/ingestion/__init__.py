"""From LangChain's documents to long units, chunks and what they are found by."""
