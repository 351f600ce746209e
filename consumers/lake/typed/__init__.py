"""Typed tables: for each column with a registered schema its rows with typed columns, the newest
version of each row, and the cells that fit no schema.

===================  ===============================================================================
shapes               the column types of an Avro schema; leaves has the scalars
merged_schema        the columns of a table for all versions of a schema
bodies               bodies as columns, exactly or not at all; restored_bodies is the way back
conforming           an array as another type of the same values; uuid_arrays has the UUIDs
typed_cells          cells as rows of the tables of their column
column_kinds         names and columns of these tables
cell_ranges          parts of the log, from memory or from the table of all cells
following_table      a table with positions of its own
parking              cells that fit no schema, until it is mended
latest               merging of newest versions; row_hashes finds the files to change
column_tables        the tables of one column, step by step
following            those of all columns, after each commit of the table of all cells
table_views          the tables in DuckDB; table_digests compares them with all cells
===================  ===============================================================================
"""
