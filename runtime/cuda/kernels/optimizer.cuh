// The updates of optimizers.
