"""The queue algorithms: pure decisions and thin shells around a store."""
