"""Local servers: MariaDB, ZooKeeper and Kafka as processes of ``cellfeed up``, with the settings
that the images of ``docker/`` have.

One file per kind says how it is made ready, started and asked; :mod:`cellfeed.servers.life` starts,
awaits and records any of them; :mod:`cellfeed.servers.configured` makes them from the
configuration.
"""
