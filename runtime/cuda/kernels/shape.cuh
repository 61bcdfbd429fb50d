// Laying tensors together, padding, running sums.
