"""Chaos by hand: python -m tests.chaos SEED [STEPS [COLLECTORS]]"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.story import tell

if __name__ == "__main__":
    seed, steps, collectors = (int(a) for a in [*sys.argv[1:], *["120", "2"][len(sys.argv) - 2 :]])
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(directory)
    found = asyncio.run(tell(directory, seed, steps, collectors))
    print("\n".join(found) or "nothing is wrong")
    sys.exit(bool(found))
