"""Dictionaries: the common parts of one column's bodies, so that they need not be stored with each
(body codec 3)."""
