"""The whole first day of a new user: see :mod:`tests.newcomer.day`."""
