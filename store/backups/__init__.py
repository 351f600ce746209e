"""Backups of a datastore: what its logs hold as files, and back into empty storage."""
