"""From Spark into queues: idempotent puts, whatever is retried."""
