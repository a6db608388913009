"""A producer: keys make puts safe to repeat, whatever becomes of the answer.

    python examples/producer.py [ADDRESS] [COUNT]

Run it twice: the second time every put finds that its key was used before, and nothing is added. Keys are remembered
for the queue's `window_s`, an hour unless set otherwise.
"""

from __future__ import annotations

import sys

import capellini


def orders(count: int) -> list[capellini.NewMessage]:
    """A key is something of your own that is the same when the put is tried again: here the order's number."""
    return [
        capellini.NewMessage(f"order {number}".encode(), attributes={"customer": "anna"}, key=f"order-{number}")
        for number in range(1, count + 1)
    ]


def main(address: str = "rocks:data", count: str = "10") -> None:
    # A node that restarts, or a store that is away, is asked again for up to a minute before a call fails.
    with capellini.connect(address, patience_s=60) as client:
        client.create_queue("orders")  # the same again is fine
        results = client.put_many("orders", orders(int(count)))
        added = [result for result in results if isinstance(result, capellini.Put) and not result.duplicate]
        before = [result for result in results if isinstance(result, capellini.Put) and result.duplicate]
        print(f"{len(added)} added, {len(before)} were there before")
        for problem in (result for result in results if isinstance(result, capellini.Problem)):
            print(f"not put: {problem.says}")  # with keys, running this program again settles it


if __name__ == "__main__":
    main(*sys.argv[1:])
