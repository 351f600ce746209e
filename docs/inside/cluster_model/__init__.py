"""An explicit-state model of a cluster: promotion, state, buffer and rejoin.

``docs/inside/cluster-model.md`` describes its results. Run it with ``make model``, or
``python -m docs.inside.cluster_model --help``.
"""
