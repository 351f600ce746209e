"""What `cellfeed check` holds against each other: a log's cells with their checksums, ids and keys, and with the counters that tell of them.

:mod:`findings`   what was found, in words and numbers
:mod:`log_check`  the cells of one shard, from whatever storage; :mod:`store.engines.sqlite_integrity` and :mod:`store.engines.mysql_integrity` read them
:mod:`embedded`   the files of an embedded store; :mod:`store.clusters.check` the nodes of clusters
"""
