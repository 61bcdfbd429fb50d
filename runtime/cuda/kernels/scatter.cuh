// Writing at indices, in one order.
