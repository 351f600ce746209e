"""Inspects an installation and says what to mend. It reads, and changes nothing: its one write is
an empty file beside the data, by which it measures how long a sync takes."""
