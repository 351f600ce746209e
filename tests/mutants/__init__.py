"""Mutation testing: bugs are planted one at a time, and the tests that should find each must fail
(``make mutants``)."""
