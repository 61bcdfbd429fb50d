// Rotary position embeddings.
