"""``cellfeed load``: files into cells.

========  =================================================================================
records   CSV, NDJSON and Parquet as streams of records with their line numbers
row_keys  a row key out of the values of a record
load      records into a datastore, in batches, with a report
taxi      how the taxi trips that the product ships become cells
========  =================================================================================
"""
