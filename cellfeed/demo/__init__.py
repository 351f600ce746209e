"""The demonstration: real taxi trips from a put to a bill and a warehouse table, with the proof
that nothing was lost on the way."""
