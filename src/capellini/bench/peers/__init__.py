"""The queues we are compared with, one file each, and our own node beside them: see `peer` for what each offers."""
