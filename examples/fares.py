"""A warehouse query: DuckDB over the Parquet files that the loader has committed.

`cells` has every cell, `latest` the newest one of each row key and column.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cellfeed.consumers.warehouse.table import WarehouseTable

FARES = """
    SELECT body->>'$.payment' AS payment, count(*) AS trips,
           sum((body->>'$.fare_cents')::BIGINT) AS fare_cents
    FROM latest WHERE column_name = 'BASE' GROUP BY payment ORDER BY payment
"""

for row in WarehouseTable(Path(sys.argv[1])).query(FARES):
    print(row["payment"], row["trips"], row["fare_cents"])
