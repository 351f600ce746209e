"""Two actors at the places where only one may win, in every order: see
:mod:`tests.races.scheduler`."""
