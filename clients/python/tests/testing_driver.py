"""The service of fencelock.testing under orders, a line of JSON each: internal/clienttest."""

import json
import sys

from fencelock.testing import Service

with Service() as service:
    others = {}
    orders = {
        "end": lambda resource: service.end(resource), "lose": lambda resource: service.lose_next_answer(), "await": lambda resource: service.await_waiters(resource),
        "hold": lambda resource: others.__setitem__(resource, service.hold(resource)), "let": lambda resource: others.pop(resource).release(),
    }
    print(json.dumps({"url": service.url}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        orders[order["do"]](order["resource"])
        print(json.dumps({"url": service.url}), flush=True)
