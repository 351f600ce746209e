"""``cellfeed load``: files into cells.

============  =============================================================================
records       a file of any format as a stream of records with their line numbers
csv_file      CSV, and the types that the whole file agrees on (field_types)
ndjson_file   NDJSON
parquet_file  Parquet, column by column
row_keys      a row key out of the values of a record
spec          how records become cells
look          the outcome of a load, without writing
load          cells into a datastore, several batches under way, with a report
taxi          how the taxi trips that the product ships become cells
============  =============================================================================
"""
