"""Jobs on top of the data source. Each is a function, and a verb of `capellini pipeline`."""
