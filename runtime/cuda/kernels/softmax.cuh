// Softmax along any dim, its logarithm, its gradient.
