// Cross-entropy over a large vocabulary, without its probabilities in memory.
