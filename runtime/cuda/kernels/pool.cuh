// Pooling over windows.
