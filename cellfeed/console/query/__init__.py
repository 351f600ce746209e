"""The console's queries: SQL over a lake or a warehouse, an index, and a form that puts a cell."""
