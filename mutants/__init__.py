"""Measuring the judge. For now this room only assembles the console script."""
