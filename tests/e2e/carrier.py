"""Carries one request to a node of the Ray cluster at hand, and prints each word of the answer as a line.

python carrier.py NODE OP BODY [EVENT]      withdraws the request when it hears of this phase
"""

import json
import sys

from gcr.cluster.plugins import cluster

name, op, body, *withdrawn_at = sys.argv[1:]
node = next(each for each in cluster().nodes() if each.name == name)
for word in node.carry("token", op, json.loads(body), 60.0):
    print(json.dumps({"kind": word.kind, **word.body}), flush=True)
    if word.body.get("phase") in withdrawn_at:
        node.withdraw("token")
