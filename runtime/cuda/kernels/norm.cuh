// Layer norm and RMS norm, and their gradients.
