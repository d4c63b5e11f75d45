"""Writes models that run without this package, and files that are whole or not there."""
