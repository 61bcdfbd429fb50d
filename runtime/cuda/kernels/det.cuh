// Determinants.
