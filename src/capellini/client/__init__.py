"""The Python client, sync and async, for a node, a Cassandra keyspace or a folder."""
