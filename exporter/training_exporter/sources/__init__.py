"""The only places that touch the machine: each source reads one thing and returns records of `model`."""
