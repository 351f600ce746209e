"""Archived binlogs: the transactions that clusters of MariaDB servers commit between two
increments, copied within seconds into the folder of backups.

    transactions.py   the archived parts of a transaction.
    stream.py         reads a master's binlog, as its minions do.
    piece.py          a file of the archive.
    archive.py        the archive of one cluster and one history: marker, pieces, how far it is.
    archiver.py       the loop that fills it; survives promotions, names gaps.
    tail.py           cells of archives beyond the newest increment, as one more increment.
    tailed_folder.py  a folder of backups with these increments, for a restore.
    covered.py        which pieces later backups have made superfluous.
"""
