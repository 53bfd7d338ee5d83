"""Runs: which processes, GPUs, logs and checkpoints belong together, and what their signs of life mean. Pure."""
