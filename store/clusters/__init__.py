"""Clusters of storage nodes: one master and its minions behind the engine contract, several
clusters to a datastore."""
