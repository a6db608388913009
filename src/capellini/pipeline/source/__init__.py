"""The data source `capellini`: queues and counters as tables that Spark reads and writes, Arrow throughout."""
