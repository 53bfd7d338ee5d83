"""A training run as data: what each source would say, second by second, on a virtual clock."""
