"""Log understanding: bytes in, events out; no I/O, no clock, no configuration per framework."""
