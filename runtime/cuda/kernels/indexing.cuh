// Reading at indices, and the gradients of that, summed in one order.
