"""A worker: runs a function on each message, and lets what fails too often end in dead letters.

    python examples/worker.py [ADDRESS] [IDLE_S]

Stop it with Ctrl-C: what runs is finished first. With IDLE_S it ends by itself after so long without a message.
"""

from __future__ import annotations

import sys

import capellini


def handle(message: capellini.Message[str]) -> None:
    """Returns: acked. Raises: offered again after a growing delay. It may run twice for one message: a worker that dies
    after its work and before its ack leaves the message to another one."""
    if "13" in message.body:
        raise ValueError(f"{message.body} cannot be worked on")
    print(f"done with {message.body} for {message.attributes.get('customer', 'nobody')}", flush=True)


def main(address: str = "rocks:data", idle_s: str | None = None) -> None:
    with capellini.connect(address, codec="str") as client:
        client.create_queue("unworkable")
        client.create_queue("orders")
        client.change_queue("orders", delivery_limit=2, dead_letters="unworkable")
        handled = client.consume("orders", handle, concurrency=4, idle_s=float(idle_s) if idle_s else None)
        print(f"handled {handled}; see `capellini dead list orders` for what could not be")


if __name__ == "__main__":
    main(*sys.argv[1:])
