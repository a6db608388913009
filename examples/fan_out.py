"""Fan-out: one log queue, two groups; each gets everything that it wants, at its own pace.

    python examples/fan_out.py [ADDRESS] [COUNT]

`billing` wants only what was paid; `search` wants all. A group that comes later, or seeks back, gets the past as well,
as far as it is kept.
"""

from __future__ import annotations

import sys

import capellini


def drained(client: capellini.Client[str], group: str) -> list[str]:
    """All that is there for a group, acked. What goes on for ever uses `client.consume("orders@billing", ...)`."""
    bodies: list[str] = []
    while messages := client.get("orders", 100, wait_s=0.5, group=group):
        bodies += [message.body for message in messages]
        client.ack_many(f"orders@{group}", messages)
    return bodies


def main(address: str = "rocks:data", count: str = "10") -> None:
    with capellini.connect(address, codec="str") as client:
        client.create_queue("orders", "log")
        client.groups.create("orders", "billing", filter={"state": ["paid"]})
        client.groups.create("orders", "search")
        for number in range(1, int(count) + 1):
            state = "open" if number % 3 else "paid"
            client.put("orders", f"order {number}", attributes={"state": state})
        print(f"billing got {len(drained(client, 'billing'))}, search got {len(drained(client, 'search'))}")

        client.groups.seek("orders", "search", "earliest")  # the index was lost: read all of it once more
        print(f"search got {len(drained(client, 'search'))} again")
        _, lag = client.groups.show("orders", "search")
        print(f"search is {lag.ready} behind")


if __name__ == "__main__":
    main(*sys.argv[1:])
