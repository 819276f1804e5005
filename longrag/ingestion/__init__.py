"""From documents to long units: links, sentences, chunks, grouping. No vectors here."""
