"""The one table of routes. The router and the OpenAPI document are both made from it, so that neither can know more
than the other."""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.api import counters, groups, messages, peers, queues, rows, schedules, streams, system, timed, wire
from capellini.api.router import Kind, Route
from capellini.model import counters as counting
from capellini.model import log as logs
from capellini.model import service
from capellini.model import timed as timing
from capellini.model.frames import PATH

QUEUE: Final = "/v1/queues/{name}"
GROUP: Final = f"{QUEUE}/groups/{{group}}"
COUNTER: Final = "/v1/counters/{counter}"
SCHEDULE: Final = "/v1/schedules/{schedule}"
PACKED_ONLY: Final = ("application/msgpack",)
PLAIN: Final = ("application/json",)


class Results(msgspec.Struct, frozen=True):
    """One result per item, in order: `good`, or a Problem."""

    good: type


class Listed(msgspec.Struct, frozen=True):
    """An object with one field that holds a list; `paged`: and `more`, true when there may be more after its last."""

    field: str
    item: type
    paged: bool = False


class Text(msgspec.Struct, frozen=True):
    media: str


class Moved(msgspec.Struct, frozen=True):
    moved: int


ROUTES: Final = (
    # the node
    Route("GET", "/health", Kind.SYSTEM, system.health, "Is the process alive", gives=system.Health),
    Route("GET", "/ready", Kind.SYSTEM, system.ready, "Does the node take work, and if not, why", gives=system.Ready),
    Route("GET", "/version", Kind.SYSTEM, system.version, "Which version runs here", gives=system.Version),
    Route("GET", "/metrics", Kind.SYSTEM, system.metrics, "Figures for Prometheus", gives=Text("text/plain")),
    Route("GET", "/v1/openapi.json", Kind.SYSTEM, system.openapi, "This document", gives=dict, media=PLAIN),
    Route("GET", PATH, Kind.SYSTEM, system.channel, "Make this connection a channel: many calls at a time, in frames",
          gives=service.Problem, status=426),
    Route("POST", "/v1/drain", Kind.SYSTEM, system.drain,
          "Take no new work and finish what was begun, or take work again",
          takes=system.DrainOrder, gives=system.Drained),
    # queues
    Route("GET", "/v1/queues", Kind.READ, queues.list_all, "Queues by name",
          query=queues.ListQuery, gives=Listed("queues", service.QueueInfo)),
    Route("PUT", QUEUE, Kind.CHANGE, queues.create,
          "Create a queue; the same again is fine, other options are a conflict",
          takes=queues.Create, gives=service.QueueInfo),
    Route("GET", QUEUE, Kind.READ, queues.show, "What a queue is", gives=service.QueueInfo),
    Route("PATCH", QUEUE, Kind.TIDY, queues.change, "Change options of a queue",
          takes=queues.Change, gives=service.QueueInfo, body_needed=True),
    Route("DELETE", QUEUE, Kind.TIDY, queues.delete, "Delete a queue and all in it", status=204),
    Route("POST", f"{QUEUE}/pause", Kind.TIDY, queues.pause, "Take no puts, give no messages, or neither",
          takes=queues.Sides, gives=service.QueueInfo),
    Route("POST", f"{QUEUE}/resume", Kind.TIDY, queues.resume, "End a pause", takes=queues.Sides,
          gives=service.QueueInfo),
    Route("POST", f"{QUEUE}/purge", Kind.TIDY, queues.purge, "Remove all messages", gives=service.QueueInfo),
    Route("GET", f"{QUEUE}/statistics", Kind.READ, queues.statistics, "How much is in a queue",
          gives=service.Statistics),
    # messages
    Route("POST", f"{QUEUE}/messages", Kind.PUT, messages.put, "Put messages: a batch, or the bare body of one",
          takes=wire.Puts, gives=Results(service.Put), raw=True, query=wire.RawPut, body_needed=True),
    Route("GET", f"{QUEUE}/messages", Kind.READ, messages.peek, "Look at messages without taking them",
          query=messages.PeekQuery, gives=Listed("messages", wire.Seen, paged=True)),
    Route("POST", f"{QUEUE}/messages/get", Kind.TAKE, messages.get, "Get messages, waiting for some if asked to",
          takes=wire.Get, gives=Listed("messages", wire.Delivered)),
    Route("POST", f"{QUEUE}/messages/ack", Kind.FINISH, messages.ack, "Done with messages: they do not come again",
          takes=wire.Acks, gives=Results(service.Done), body_needed=True),
    Route("POST", f"{QUEUE}/messages/nack", Kind.FINISH, messages.nack, "Give messages back",
          takes=wire.Nacks, gives=Results(service.Done), body_needed=True),
    Route("POST", f"{QUEUE}/messages/extend", Kind.FINISH, messages.extend, "Keep messages hidden for longer",
          takes=wire.Extends, gives=Results(service.Done), body_needed=True),
    Route("GET", f"{QUEUE}/dead", Kind.READ, messages.dead, "Dead letters of a queue",
          query=messages.DeadQuery, gives=Listed("messages", wire.Seen, paged=True)),
    Route("POST", f"{QUEUE}/redrive", Kind.CHANGE, messages.redrive, "Move dead letters back",
          takes=messages.Redrive, gives=Moved),
    # timed queues
    Route("POST", f"{QUEUE}/messages/cancel", Kind.CHANGE, timed.cancel, "What is scheduled is not delivered",
          takes=timed.Cancels, gives=Results(service.Done), body_needed=True),
    Route("POST", f"{QUEUE}/messages/move", Kind.CHANGE, timed.move, "Scheduled messages become due at another time",
          takes=timed.Moves, gives=Results(service.Done), body_needed=True),
    Route("GET", f"{QUEUE}/due", Kind.READ, timed.due_between, "What is due between two times",
          query=timed.DueQuery, gives=Listed("messages", timed.SeenDue)),
    Route("GET", f"{QUEUE}/shards", Kind.READ, timed.shards, "Who works which shard, and how far",
          gives=Listed("shards", timing.ShardView)),
    Route("POST", f"{QUEUE}/shards/{{shard}}/stop", Kind.CHANGE, timed.stop_shard, "A shard hands out nothing",
          gives=timing.ShardView),
    Route("POST", f"{QUEUE}/shards/{{shard}}/start", Kind.CHANGE, timed.start_shard, "A shard hands out again",
          gives=timing.ShardView),
    # log queues
    Route("GET", f"{QUEUE}/groups", Kind.READ, groups.list_all, "Consumer groups of a queue",
          gives=Listed("groups", logs.GroupInfo)),
    Route("PUT", GROUP, Kind.CHANGE, groups.create,
          "Create a group; the same again is fine, other options are a conflict",
          takes=groups.CreateGroup, gives=logs.GroupInfo),
    Route("GET", GROUP, Kind.READ, groups.show, "What a group is, and how far it is behind", gives=groups.ShownGroup),
    Route("PATCH", GROUP, Kind.TIDY, groups.change, "Change options of a group",
          takes=groups.ChangeGroup, gives=logs.GroupInfo, body_needed=True),
    Route("DELETE", GROUP, Kind.TIDY, groups.delete, "Delete a group", status=204),
    Route("POST", f"{GROUP}/seek", Kind.TIDY, groups.seek, "Go on from another place, back or ahead",
          takes=groups.Seek, gives=logs.GroupInfo, body_needed=True),
    Route("POST", f"{GROUP}/dead/merge", Kind.CHANGE, groups.merge_dead, "Dead letters come to their group again",
          takes=messages.Redrive, gives=Moved),
    Route("POST", f"{GROUP}/dead/purge", Kind.TIDY, groups.purge_dead, "Remove the dead letters of a group",
          status=204),
    Route("GET", f"{QUEUE}/routes", Kind.READ, groups.routes, "Which nodes write and read a queue: others work, slower",
          query=groups.RoutesQuery, gives=logs.Routes),
    Route("GET", f"{QUEUE}/debug/extents", Kind.READ, groups.extents, "Extents: writer, state, cursors",
          gives=Listed("extents", logs.ExtentView)),
    Route("GET", f"{QUEUE}/streams/put", Kind.PUT, streams.put_stream, "A WebSocket that chunks are put through",
          query=streams.PutQuery, gives=service.Problem, status=426),
    Route("GET", f"{GROUP}/streams/get", Kind.TAKE, streams.get_stream, "A WebSocket that parcels come from",
          query=streams.GetQuery, gives=service.Problem, status=426),
    Route("POST", f"{QUEUE}/chunks/put", Kind.PUT, groups.put_chunk, "Put one chunk: messages of a log queue",
          takes=bytes, gives=list, media=PACKED_ONLY, body_needed=True),
    Route("POST", f"{GROUP}/chunks/get", Kind.TAKE, groups.get_chunks, "Get parcels: messages as they were put",
          takes=groups.Pull, gives=list, media=PACKED_ONLY, body_needed=True),
    Route("POST", f"{GROUP}/chunks/settle", Kind.FINISH, groups.settle, "Ack, nack or extend ranges of parcels",
          takes=list, gives=list, media=PACKED_ONLY, body_needed=True),
    Route("GET", "/v1/schedules", Kind.READ, schedules.list_all, "Recurring schedules by name",
          query=schedules.ScheduleQuery, gives=Listed("schedules", schedules.Scheduled)),
    Route("PUT", SCHEDULE, Kind.CHANGE, schedules.add,
          "A message at each tick of a cron expression; the same again is fine, another one is a conflict",
          takes=schedules.NewRecurring, gives=schedules.Scheduled, body_needed=True),
    Route("DELETE", SCHEDULE, Kind.TIDY, schedules.remove, "No more ticks", status=204),
    Route("POST", "/v1/peers/{name}/{operation}", Kind.FINISH, peers.serve, "What nodes ask each other",
          takes=list, gives=list, media=PACKED_ONLY, body_needed=True),
    Route("POST", "/v1/rows/{table}", Kind.READ, rows.read, "Rows as they are stored: a page of one partition",
          takes=list, gives=list, media=PACKED_ONLY, body_needed=True),
    # the fast lane
    Route("POST", f"{QUEUE}/blocks/put", Kind.PUT, messages.put_block,
          "Put a block: an array of [body, attributes or nil, delay_ms]",
          takes=list, gives=list[tuple[int, int]], media=PACKED_ONLY, body_needed=True, at_once=True),
    Route("POST", f"{QUEUE}/blocks/get", Kind.TAKE, messages.take, "Get parcels: runs of messages as they were put",
          takes=wire.Take, gives=list, media=PACKED_ONLY, body_needed=True),
    Route("POST", f"{QUEUE}/blocks/ack", Kind.FINISH, messages.ack_parcels, "Ack ranges of parcels",
          takes=list, gives=list[list[tuple[int, int]]], media=PACKED_ONLY, body_needed=True, at_once=True),
    # a look inside
    Route("GET", f"{QUEUE}/debug/buckets", Kind.READ, queues.buckets, "Buckets that are not finished",
          query=queues.BucketQuery, gives=Listed("buckets", service.BucketView)),
    Route("GET", f"{QUEUE}/debug/pointers", Kind.READ, queues.pointers, "Where reading and repair are",
          gives=service.PointersView),
    Route("POST", f"{QUEUE}/debug/pointers", Kind.CHANGE, queues.move_repair, "Move the repair pointer back",
          takes=queues.MoveRepair, gives=service.PointersView, body_needed=True),
    Route("GET", f"{QUEUE}/debug/messages/{{id}}", Kind.READ, queues.message, "Where one message is",
          gives=service.MessageView),
    # counters
    Route("GET", "/v1/counters", Kind.READ, counters.list_all, "Counters by name",
          query=counters.CounterList, gives=Listed("counters", counting.Named)),
    Route("GET", COUNTER, Kind.READ, counters.read, "The value of a counter",
          query=counters.ReadQuery, gives=counting.Reading),
    Route("POST", COUNTER, Kind.PUT, counters.update, "Update a counter; its first update decides its kind",
          takes=counters.OneUpdate, gives=counting.Counted),
    Route("POST", f"{COUNTER}/gc", Kind.CHANGE, counters.collect, "Merge expired shards into the tally",
          gives=counting.Collected),
    Route("POST", "/v1/counter-updates", Kind.PUT, counters.update_many,
          "Update counters: an array of [counter, value] or [counter, value, kind]",
          takes=counters.Updates, gives=Results(counting.Counted), body_needed=True),
    Route("POST", "/v1/counter-reads", Kind.READ, counters.read_many, "The values of several counters",
          takes=counters.Reads, gives=Results(counting.Reading), body_needed=True),
    Route("POST", "/v1/counter-intersection", Kind.READ, counters.intersect,
          "How many different elements all of these theta counters have seen",
          takes=counters.Intersect, gives=counters.Estimate, body_needed=True),
)  # fmt: skip
