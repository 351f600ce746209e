"""Kafka to Parquet, exactly once: the table's own commits say how far it is (I16).

===============  ==================================================================================
layout           where everything lies in a table's directory, and what a commit record holds
durable_files    writes that survive a power cut; put-if-absent by hard link
staging          data files not yet committed, each locked by its living owner
chain            the commits of one shard: each starts where the one before ended
cell_rows        the columns, and the rows gathered for the next file
shard_loader     one shard from records to commits, without Kafka
loader           the consumer group around it
table            reading: rows, digests, positions, SQL
===============  ==================================================================================
"""
