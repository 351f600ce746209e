"""Inspects an installation and names its faults with their remedies. It reads, and changes
nothing: its one write is a small file beside the data, which measures how long a sync takes."""
