"""Optimisation problems that are solved once, before training: which layers a device trains."""
