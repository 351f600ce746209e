"""The console: an instance in the browser. Pages are made on the server, from the same status as
``cellfeed status`` and ``cellfeed top``; scripts only fetch them again when something changed."""
