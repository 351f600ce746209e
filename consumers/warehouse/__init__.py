"""Kafka to Parquet, exactly once: the table's own commits say how far it is (I16).

===============  ==================================================================================
layout           the places in a table's directory, and the fields of a commit record
staging          data files not yet committed, each locked by its living owner; put-if-absent
chain            the commits of one shard: each starts where the one before ended
cell_rows        the columns, and the rows gathered for the next file
shard_loader     one shard from records to commits, without Kafka
loader           the consumer group around it
loader_progress  when rows are written out, and the counts of a run
recognition      whether the cluster is one of the table's
kafka_records    parts of a record, where to read next, the ends of a topic
table            reading: rows, digests, positions, SQL
===============  ==================================================================================
"""
