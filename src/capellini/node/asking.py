"""How operators' tools ask a node: one small request, by nothing but the standard library, so that it works when little
else does."""

from __future__ import annotations

import http.client
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from capellini.model.address import NodeAddress, parse
from capellini.model.errors import Invalid, Unavailable, from_name

TIMEOUT_S: Final = 5.0


def ask_node(at: str, method: str, path: str, wants: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    """The status and the decoded answer, in which a node tells `wants`; any other server is not taken for one. Raises
    what the node says is wrong, Invalid or Unavailable."""
    address = parse(at)
    if not isinstance(address, NodeAddress):
        raise Invalid(f"{at} is not the address of a node: use http://HOST:PORT")
    parts = urlsplit(address.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body is not None else {})
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read(), type=dict[str, Any])
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no connection to {address}: {error}; is a node running there?") from None
    except msgspec.DecodeError:
        raise Unavailable(f"{address} does not answer as a node does: is it one?") from None
    finally:
        connection.close()
    if "error" in answer:
        raise from_name(str(answer["error"]), str(answer.get("says", f"{address} answered {response.status}")))
    if wants not in answer:
        raise Unavailable(f"{address} does not answer as a node does: is it one?")
    return response.status, answer
