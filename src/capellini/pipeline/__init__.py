"""What happens to messages after the queue, on Spark: a data source, and jobs on top. Comes with `capellini[spark]`."""
