"""Two processes on one folder, without a server: the first to open it owns the store and serves the other.

    python examples/two_processes.py [FOLDER] [COUNT]

The parent puts, the child works; answers come back through a second queue. Which of the two owns the folder does not
matter to either: the calls are the same.
"""

from __future__ import annotations

import multiprocessing
import sys

import capellini


def work(folder: str, count: int) -> None:
    """The child: a process of its own, with a client of its own. A client does not survive a fork."""
    with capellini.connect(f"rocks:{folder}", codec="json") as client:

        def square(message: capellini.Message[int]) -> None:
            client.put("squares", [message.body, message.body**2], key=f"square-{message.body}")

        client.consume("numbers", square, concurrency=4, count=count)


def main(folder: str = "data", count: str = "20") -> None:
    numbers = range(1, int(count) + 1)
    with capellini.connect(f"rocks:{folder}", codec="json") as client:
        client.create_queue("numbers")
        client.create_queue("squares")
        child = multiprocessing.get_context("spawn").Process(target=work, args=(folder, len(numbers)))
        child.start()
        client.put_many("numbers", list(numbers))
        squares: dict[int, int] = {}
        while len(squares) < len(numbers) and (child.is_alive() or client.statistics("squares").ready):
            for message in client.get("squares", count=100, wait_s=1):
                number, square = message.body
                squares[number] = square
                message.ack()
        child.join()
    print(f"{len(squares)} squares, the largest is {max(squares.values(), default=0)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
