// Attention and its gradient.
