// Dropout, with the numbers of the interpreter.
