"""The report: what queues did, by hour, as tables and as a page that a person reads."""
