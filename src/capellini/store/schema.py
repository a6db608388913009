"""All tables, declared once. Created as CQL tables that a person can read in cqlsh, and as ordered keys in RocksDB.

    queues        (realm)                       ▸ name          what a queue is: kind, generation, options, state
    left          (realm)                       ▸ queue, generation   what a deleted or purged queue left to be cleared
    monoton       (queue, generation)                           the next id
    pointers      (queue, generation)                           the list of unfinished buckets
    buckets       (queue, generation, bucket)   ▸ first         blocks of messages; the packed state is static
    keys          (queue, generation, key)                      idempotency keys and moves
    leases        (node)                                        one row per node: incarnation and beat
    home_leases   (home, node)                                  the same within one data centre, for log queues there
    assignments   (scope)                       ▸ item          which incarnation owns what, with an epoch
    counters      (name)                        ▸ expires_at, mutator   shards of a counter; its tally is the last row
    counter_names (shelf)                       ▸ name          which state each counter has
    timed_rows    (queue, generation, part, shard) ▸ position   messages of a timed queue, by when they are due
    timed_parts   (queue, generation, shard)    ▸ part          which time parts of a shard have been written to
    timed_shards  (queue, generation, shard)    ▸ epoch         how far each holder of a shard has read, or will
    timed_records (queue, generation, shard, epoch, run) ▸ seq  what a holder has finished: a snapshot, then changes
    timed_moved   (queue, generation, id)                       where a message is whose due was changed
    log_extents   (queue, generation, home)     ▸ extent        the extents of a log queue: writer, state, end
    log_blocks    (queue, generation, extent)   ▸ first, block  blocks of messages, each of one group commit
    log_producers (queue, generation, producer)                 which extent a producer's sequence is bound to
    log_groups    (queue, generation)           ▸ name          consumer groups: what each wants, and since when
    log_owners    (queue, generation, extent)   ▸ reader        which incarnation reads an extent for a group
    log_cursors   (queue, generation, extent, reader) ▸ epoch, page   what a group has finished of an extent
    log_delayed   (queue, generation, home)     ▸ shard         delayed messages on their way into an extent
    schedules     (shelf)                       ▸ name          recurring schedules, and how far each has come
    shared        (realm)                       ▸ name          what all nodes know and nobody else: their secret

Columns named in `conditional` are changed by compare-and-set only, all others by plain writes only.
"""

from __future__ import annotations

from typing import Final

from capellini.store.interface import Column, Table, Type

SCHEMA_VERSION: Final = 1


def _columns(**types: Type) -> tuple[Column, ...]:
    return tuple(Column(name, type) for name, type in types.items())


def _names(columns: tuple[Column, ...]) -> frozenset[str]:
    return frozenset(column.name for column in columns)


_queue_columns = _columns(kind=Type.TEXT, generation=Type.INT, state=Type.TEXT, record=Type.TEXT, token=Type.TEXT)
QUEUES: Final = Table(
    name="queues",
    doc="What each queue is. A deleted queue keeps its row, so that its next generation is a new one.",
    partition=_columns(realm=Type.TEXT),
    clustering=_columns(name=Type.TEXT),
    columns=_queue_columns,
    conditional=_names(_queue_columns),
)

_left_columns = _columns(state=Type.TEXT, bucket_size=Type.INT, token=Type.TEXT)
LEFT: Final = Table(
    name="left_over",
    doc="Generations whose rows are still to be cleared in the background.",
    partition=_columns(realm=Type.TEXT),
    clustering=_columns(queue=Type.TEXT, generation=Type.INT),
    columns=_left_columns,
    conditional=_names(_left_columns),
)

_monoton_columns = _columns(next=Type.INT, state=Type.TEXT, token=Type.TEXT)
MONOTON: Final = Table(
    name="monoton",
    doc="The next message id of a work queue.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT),
    columns=_monoton_columns,
    conditional=_names(_monoton_columns),
)

_pointer_columns = _columns(record=Type.BLOB, token=Type.TEXT)
POINTERS: Final = Table(
    name="pointers",
    doc="The unfinished buckets of a work queue, each with the earliest time something in it can be had.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT),
    columns=_pointer_columns,
    conditional=_names(_pointer_columns),
)

_bucket_statics = _columns(state=Type.BLOB, token=Type.TEXT, dropped=Type.BLOB)
BUCKETS: Final = Table(
    name="buckets",
    doc="A run of message ids of a work queue: blocks of messages, and the packed state of all of them.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, bucket=Type.INT),
    clustering=_columns(first=Type.INT),
    columns=_columns(count=Type.INT, delayed=Type.BOOL, block=Type.BLOB),
    statics=_bucket_statics,
    conditional=_names(_bucket_statics),
)

_key_columns = _columns(id=Type.INT, state=Type.TEXT, token=Type.TEXT)
KEYS: Final = Table(
    name="keys",
    doc="Idempotency keys: which id a key became. Rows expire with the queue's window.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, key=Type.TEXT),
    columns=_key_columns,
    conditional=_names(_key_columns),
)

_lease_columns = _columns(incarnation=Type.TEXT, beat=Type.INT, state=Type.TEXT, address=Type.TEXT, token=Type.TEXT)
LEASES: Final = Table(
    name="leases",
    doc="One row per node. The holder raises its beat; an ended incarnation never beats again.",
    partition=_columns(node=Type.TEXT),
    columns=_lease_columns,
    conditional=_names(_lease_columns),
    listable=True,
)

HOME_LEASES: Final = Table(
    name="home_leases",
    doc="One row per node of a data centre, changed by nodes of that data centre only: it goes on when it is cut off.",
    partition=_columns(home=Type.TEXT, node=Type.TEXT),
    columns=_lease_columns,
    conditional=_names(_lease_columns),
    listable=True,
)

_assignment_columns = _columns(node=Type.TEXT, incarnation=Type.TEXT, epoch=Type.INT, token=Type.TEXT)
ASSIGNMENTS: Final = Table(
    name="assignments",
    doc="Which incarnation of a node owns what, with an epoch that rises with each owner.",
    partition=_columns(scope=Type.TEXT),
    clustering=_columns(item=Type.TEXT),
    columns=_assignment_columns,
    conditional=_names(_assignment_columns),
)

COUNTERS: Final = Table(
    name="counters",
    doc="Shards of counters by expiry (microseconds since 1970), and as the last row of each counter its tally.",
    partition=_columns(name=Type.TEXT),
    clustering=_columns(expires_at=Type.INT, mutator=Type.TEXT),
    columns=_columns(state=Type.BLOB),
)

_counter_name_columns = _columns(kind=Type.TEXT, token=Type.TEXT)
COUNTER_NAMES: Final = Table(
    name="counter_names",
    doc="Which state each counter has, fixed at its first use.",
    partition=_columns(shelf=Type.INT),
    clustering=_columns(name=Type.TEXT),
    columns=_counter_name_columns,
    conditional=_names(_counter_name_columns),
)

TIMED_ROWS: Final = Table(
    name="timed_rows",
    doc="Messages of a timed queue by position: when they are due, or later. Never deleted: parts are dropped whole.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, part=Type.TEXT, shard=Type.INT),
    clustering=_columns(position=Type.TIMEUUID),
    columns=_columns(
        id=Type.TIMEUUID,
        version=Type.INT,
        deliveries=Type.INT,
        due_ms=Type.INT,
        put_ms=Type.INT,
        key=Type.TEXT,
        entry=Type.BLOB,
        cancelled=Type.BOOL,
        moved_to=Type.TIMEUUID,
        moved_from=Type.TIMEUUID,
    ),
)

TIMED_PARTS: Final = Table(
    name="timed_parts",
    doc="The time parts of a shard that have been written to, so that empty ones need not be looked at.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, shard=Type.INT),
    clustering=_columns(part=Type.TEXT),
    columns=_columns(first_ms=Type.INT),
)

TIMED_SHARDS: Final = Table(
    name="timed_shards",
    doc="Per holder (epoch) of a shard: the horizon it has published, and which run its records are in. At -1 what an "
    "operator says.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, shard=Type.INT),
    clustering=_columns(epoch=Type.INT),
    columns=_columns(horizon=Type.INT, run=Type.INT, stopped=Type.BOOL, token=Type.TEXT),
    conditional=frozenset({"stopped", "token"}),
)

TIMED_RECORDS: Final = Table(
    name="timed_records",
    doc="What a holder of a shard has finished: a snapshot as the first row of each run, then changes.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, shard=Type.INT, epoch=Type.INT, run=Type.INT),
    clustering=_columns(seq=Type.INT),
    columns=_columns(record=Type.BLOB),
)

TIMED_MOVED: Final = Table(
    name="timed_moved",
    doc="Where a scheduled message is whose due was changed, by its id.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, id=Type.TIMEUUID),
    columns=_columns(position=Type.TIMEUUID, before=Type.TIMEUUID),
)

_extent_columns = _columns(state=Type.TEXT, end=Type.INT, record=Type.TEXT, token=Type.TEXT)
LOG_EXTENTS: Final = Table(
    name="log_extents",
    doc="The extents of a log queue. Names begin with the time of opening; those below `first` are dropped.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, home=Type.TEXT),
    clustering=_columns(extent=Type.TEXT),
    columns=_extent_columns,
    statics=_columns(first=Type.TEXT, last=Type.TEXT, chain=Type.TEXT),
    conditional=_names(_extent_columns) | {"first", "last", "chain"},
)

LOG_BLOCKS: Final = Table(
    name="log_blocks",
    doc="The messages of an extent in blocks, each written once by the extent's one writer. Dropped whole.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, extent=Type.TEXT),
    clustering=_columns(first=Type.INT, block=Type.INT),
    columns=_columns(count=Type.INT, confirmed=Type.INT, put_ms=Type.INT, chunks=Type.BLOB),
    statics=_columns(sequences=Type.BLOB),
    apart=True,
)

_producer_columns = _columns(extent=Type.TEXT, before=Type.INT, token=Type.TEXT)
LOG_PRODUCERS: Final = Table(
    name="log_producers",
    doc="The extent that a producer's sequence is bound to, and its last sequence before that extent.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, producer=Type.BLOB),
    columns=_producer_columns,
    conditional=_names(_producer_columns),
)

_group_columns = _columns(state=Type.TEXT, record=Type.TEXT, token=Type.TEXT)
LOG_GROUPS: Final = Table(
    name="log_groups",
    doc="Consumer groups of a log queue. A deleted one keeps its row, so that its successor is a new one.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT),
    clustering=_columns(name=Type.TEXT),
    columns=_group_columns,
    conditional=_names(_group_columns),
)

LOG_OWNERS: Final = Table(
    name="log_owners",
    doc="Which incarnation of a node reads an extent for a group, with an epoch that rises with each owner.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, extent=Type.TEXT),
    clustering=_columns(reader=Type.TEXT),
    columns=_assignment_columns,
    statics=_columns(dropped=Type.TEXT),
    conditional=_names(_assignment_columns) | {"dropped"},
)

LOG_CURSORS: Final = Table(
    name="log_cursors",
    doc="What a group has finished of an extent, in pages, under the epoch of whoever wrote it. Dropped whole.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, extent=Type.TEXT, reader=Type.TEXT),
    clustering=_columns(epoch=Type.INT, page=Type.INT),
    columns=_columns(state=Type.BLOB),
)

_delayed_columns = _columns(state=Type.BLOB, token=Type.TEXT)
LOG_DELAYED: Final = Table(
    name="log_delayed",
    doc="Delayed messages that are due and on their way into an extent: one batch for each shard they waited in.",
    partition=_columns(queue=Type.TEXT, generation=Type.INT, home=Type.TEXT),
    clustering=_columns(shard=Type.INT),
    columns=_delayed_columns,
    conditional=_names(_delayed_columns),
)

_schedule_columns = _columns(record=Type.TEXT, token=Type.TEXT)
SCHEDULES: Final = Table(
    name="schedules",
    doc="Recurring schedules, each with the time up to which its ticks have been put. Removed ones expire.",
    partition=_columns(shelf=Type.INT),
    clustering=_columns(name=Type.TEXT),
    columns=_schedule_columns,
    conditional=_names(_schedule_columns),
)

_shared_columns = _columns(value=Type.TEXT, token=Type.TEXT)
SHARED: Final = Table(
    name="shared",
    doc="What all nodes of this store know and nobody else: the secret with which they prove themselves.",
    partition=_columns(realm=Type.TEXT),
    clustering=_columns(name=Type.TEXT),
    columns=_shared_columns,
    conditional=_names(_shared_columns),
)

TIMED_TABLES: Final = (TIMED_ROWS, TIMED_PARTS, TIMED_SHARDS, TIMED_RECORDS, TIMED_MOVED)
LOG_TABLES: Final = (LOG_EXTENTS, LOG_BLOCKS, LOG_PRODUCERS, LOG_GROUPS, LOG_OWNERS, LOG_CURSORS, LOG_DELAYED)
TABLES: Final = (
    QUEUES, LEFT, MONOTON, POINTERS, BUCKETS, KEYS, LEASES, HOME_LEASES, ASSIGNMENTS, COUNTERS, COUNTER_NAMES,
    *TIMED_TABLES, *LOG_TABLES, SCHEDULES, SHARED,
)  # fmt: skip
