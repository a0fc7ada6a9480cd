"""Zip archives that were cut into parts: directory, members, and the ranges to ask for."""
