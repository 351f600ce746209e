"""Backups of a datastore: the logs as files, and back into empty storage."""
