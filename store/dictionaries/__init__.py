"""Dictionaries: what bodies of one column have in common, so that it need not be stored with each
(body codec 3)."""
