// Batch norm: statistics, normalization, gradient.
