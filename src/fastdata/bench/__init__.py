"""Measures all of it, beside the limits of the machine."""
