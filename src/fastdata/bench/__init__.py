"""Measurements, compared with the limits of the machine."""
