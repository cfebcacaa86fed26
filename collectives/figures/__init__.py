"""Figures to step through, calculators and quick checks for a page. Each is complete without a kernel or a network."""
