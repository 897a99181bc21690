"""Modules that run on the device: integers become floats here."""
