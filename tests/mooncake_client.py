"""One Mooncake client process, driven by JSON lines on stdin; run by the interpreter of a Mooncake venv.

Standalone: it knows nothing of this project. Answers go to a file descriptor of their own, since the library
prints to stdout.
"""

import json
import os
import sys

from mooncake.store import MooncakeDistributedStore, ReplicateConfig


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    hostname, master, segment = sys.argv[2], sys.argv[3], int(sys.argv[4])
    store = MooncakeDistributedStore()
    code = store.setup(hostname, "P2PHANDSHAKE", segment, 16 << 20, "tcp", "", master)
    print(json.dumps(code), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        result = None
        if command["do"] == "put":
            config = ReplicateConfig()
            config.replica_num = command.get("replicas", 1)
            if command.get("at"):
                config.preferred_segment = command["at"]
            value = b"\x5a" * command["size"]
            result = [store.put(key, value, config) for key in command["keys"]]
        elif command["do"] == "put_batch":
            value = b"\x5a" * command["size"]
            keys = command["keys"]
            result = [
                store.put_batch(keys[i : i + 500], [value] * len(keys[i : i + 500]))
                for i in range(0, len(keys), 500)
            ]
        elif command["do"] == "remove":
            result = [store.remove(key) for key in command["keys"]]
        elif command["do"] == "close":
            result = store.close()
        print(json.dumps(result), file=answers)


if __name__ == "__main__":
    main()
