"""Wide-row stores: one interface and its implementations; knows rows, not queues."""
