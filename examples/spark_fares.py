"""A Spark job: reads the topic whole from a gateway and sums the fares by kind of payment."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, get_json_object
from pyspark.sql.functions import sum as sum_of

spark = SparkSession.builder.appName("fares").getOrCreate()
spark.sparkContext.setLogLevel("WARN")
records = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", sys.argv[1])
    .option("subscribe", "trips.BASE")
    .option("startingOffsets", "earliest")
    .load()
)
value = col("value").cast("string")
fares = (
    records.where(col("value").isNotNull())  # a row that was erased has records without a value
    .select(
        get_json_object(value, "$.body.payment").alias("payment"),
        get_json_object(value, "$.body.fare_cents").cast("long").alias("fare_cents"),
    )
    .groupBy("payment")
    .agg(count("*").alias("trips"), sum_of("fare_cents").alias("fare_cents"))
    .orderBy("payment")
)
for row in fares.collect():
    print(row.payment, row.trips, row.fare_cents)
spark.stop()
