"""HTTP: who may ask, what is answered where, and how many at once."""
