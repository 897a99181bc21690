"""Checkpoints: their files, and the states of models, optimizers and random generators as plain tensors."""
