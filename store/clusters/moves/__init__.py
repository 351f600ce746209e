"""Moves of shards between the clusters of a datastore, while it runs.

A shard is served by the one cluster whose ``shard_counter`` has its row: a put, a trim and a write
of index entries lock or look for that row, on a master, under its leader epoch. So a move is the
way of that row from one cluster to the other, in steps of one transaction each:

    1. copy      the target makes the shard's tables, under hidden names, notes the shard in
                 ``shard_arriving``, and gets the log in steps from the front, and
                 the index entries. Only what every node of the source holds is copied: no promotion
                 there can give an id that was copied to another cell. Before the first cell the
                 source's counter is marked, on every node: meanwhile nothing is erased there, so no
                 body is copied that is erased afterwards
    2. fence     on the source the counter goes from ``shard_counter`` to ``shard_leaving``: no put
                 is taken from its commit on. Then the shard's tables get
                 hidden names there: whoever reads by an old map is refused, and no write of index
                 entries that was under way comes in late. Both are waited for on every node of the
                 source, so no promotion there undoes them
    3. finish    the rest of the log and of the entries is copied, and every node of the target has
                 it. Only then, with nothing missing and nobody writing, the
                 target's tables get their own names: whoever comes by a map from before earlier
                 moves never takes half a copy for the shard
    4. switch    one transaction on the target's master: the counter with its ids, ``created_at``
                 and log start, under a higher leader epoch, takes the place of
                 the note in ``shard_arriving``. **This commit decides.** Nobody is sent there while
                 a promotion could undo it
    5. map       the shard map is written on every cluster, and processes find the shard on the
                 target
    6. clean     what the source keeps is dropped, when somebody says so (``cellfeed shard clean``);
                 the note of it goes when a minion has dropped it, too

Until 4 the move can be taken back: the target's note gets another token, so that no switch can come
any more; then the tables get their names back, and the counter its place; at last the copy and its
note go, and then the mark; or all three are kept for another try. So as long as there is a fence
there is its note, until the switch: a healer that finds a fence without a note gives nothing back.
After 4 it only goes forward; moving back is another move.

Whoever changes a shard holds a lock on the server, which ends with its connection, and does it on
that connection: a mover that was paused, or cut off, holds the lock or cannot write. Steps that
decide look for their token as well, in the same transaction.

What a kill of the mover leaves:

    in 1         the source serves, but erases nothing; a note and half a copy on the target. Moving
                 again goes on where the copy ends; rolling back drops it,
                 and so does the next erasure in the shard (``heal.py``)
    in 2 or 3    nobody serves the shard: its puts wait, fail (nothing written) or are buffered. It
                 goes back to the source by itself (``heal.py``)
    after 4      the target serves, but only who reads its map knows; the map is written by itself
    in 6         some tables are gone; cleaning again goes on
    taking back  the mark, with the copy, with the rest of it, or alone: taking back again ends it
    (``steps.take_back``)

A master that dies is met in the same way: the mover looks for the new one and goes on from what the
tables say.

The source's rows are kept until ``clean``, though nobody reads them: they cost only room, a second
copy is worth having in the first hours after a move, and dropping large tables is no part of a move
that should be short. A row that is erased on the target is there as it was: ``clean`` belongs to
erasing it.
"""
