"""Timed queues: very many messages due in the future."""
