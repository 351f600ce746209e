"""Moves of shards between the clusters of a datastore, while it runs.

A shard is served by the one cluster whose ``shard_counter`` has its row: a put, a trim and a write
of index entries lock or look for that row, on a master, under its leader epoch. So a move is the
way of that row from one cluster to the other, in steps of one transaction each:

    1. copy      the target makes the shard's tables, under hidden names, and notes the shard in
                 ``shard_arriving``. It gets the log in steps from the front, and the index entries.
                 Only cells that every node of the source holds are copied: no promotion there can
                 give an id that was copied to another cell. Before the first cell the source's
                 counter is marked, on every node: meanwhile nothing is erased there, so no body is
                 copied that is erased afterwards.
    2. fence     on the source the counter goes from ``shard_counter`` to ``shard_leaving``: no put
                 is taken from its commit on. Then the shard's tables get hidden names there: a
                 reader with an old map is refused, and no write of index entries that was under way
                 arrives late. Both are waited for on every node of the source, so no promotion
                 there undoes them.
    3. finish    the rest of the log and of the entries is copied, and every node of the target has
                 it. Only then, with nothing missing and nobody writing, the target's tables get
                 their own names: a process with a map from before earlier moves never takes half a
                 copy for the shard.
    4. switch    one transaction on the target's master: the counter with its ids, ``created_at``
                 and log start, under a higher leader epoch, takes the place of the note in
                 ``shard_arriving``. **This commit decides.** Nobody is sent there while a promotion
                 could undo it.
    5. map       the shard map is written on every cluster, and processes find the shard on the
                 target.
    6. clean     the source's tables are dropped when an operator says so (``cellfeed shard
                 clean``); their note goes when a minion has dropped them, too.

Until 4 the move can be taken back: the target's note gets another token, so that no switch can come
any more; then the tables get their names back, and the counter its place; at last the copy and its
note go, and then the mark; or all three are kept for another try. So as long as there is a fence
there is its note, until the switch: a healer that finds a fence without a note gives nothing back.
After 4 it only goes forward; moving back is another move.

A process that changes a shard holds a lock on the server, which ends with its connection, and works
on that connection: a mover that was paused, or cut off, holds the lock or cannot write. Steps that
decide look for their token as well, in the same transaction.

After a kill of the mover the servers are in one of these states:

    in 1         the source serves, but erases nothing; a note and half a copy on the target. Moving
                 again resumes where the copy ends. Rolling back drops the copy, and so does the
                 next erasure in the shard (``heal.py``).
    in 2 or 3    nobody serves the shard: its puts wait, fail (nothing written) or are buffered.
                 Healers give it back to the source (``heal.py``).
    after 4      the target serves, but only readers of its map know. Healers write the map
                 (``heal.py``).
    in 6         some tables are gone; cleaning again drops the rest.
    taking back  the mark, with the copy, with the rest of it, or alone: taking back again ends it
                 (``take_back.take_back``).

A master that dies is handled in the same way: the mover looks for the new one and resumes from the
state in the tables.

The source's rows are kept until ``clean``, though nobody reads them. They cost only room, and a
second copy is worth having in the first hours after a move. Dropping large tables is no part of a
move that should be short. A row that is erased on the target is unchanged there: ``clean`` belongs
to erasing it.
"""
