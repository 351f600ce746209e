"""Kafka to Iceberg and Delta tables, exactly once: a commit has rows and positions together.

===================  ===============================================================================
contract             the promises of a table of either format
positions            how far each shard of a table is, as text in the table's own commits
appending            one addition to a table: look, compare, try, look again
cell_columns         rows in memory as Arrow, by day and in order of row keys
open_table           the tables that a configuration names
data_files           rows as Parquet files that no commit names yet
iceberg_table        the contract on Iceberg; iceberg_catalog opens it, iceberg_positions reads it
delta_table          the contract on Delta; delta_actions has its files
synced_files         local files that are on disk before a commit names them
waiting_rows         the rows of a loader that no commit has yet, and the positions they lead to
source               which log the records come from: the ids of the cluster and of the topic
commits              the commits of one loader, and the addition whose outcome is not known yet
reading              the consumer of a loader: where each partition is read
loader               the consumer group around them
waiters              callers that wait for commits, as a loader sees them
progress             when rows are committed, and the counts of a run
typed                the typed tables of columns, which follow the table of all cells
views                reading: SQL, digests, sizes
===================  ===============================================================================

How it is exactly once, with every crash point: ``docs/inside/lake.md``.
"""
