// Rows times the matrix of the expert each belongs to.
