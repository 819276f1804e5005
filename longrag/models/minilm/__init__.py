"""MiniLM-L6-v2 in NumPy: pieces of words, weights, the network, and the embedder they make."""
