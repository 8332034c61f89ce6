"""A miniature bench on Ray, for this process or as a program: python on_ray.py FOLDER STORE
[ADDRESS].
"""

import sys
from pathlib import Path

from assay.protocols import customise, protocols
from assay.study.bench import Execution, run_bench
from miniature import MINI

METHODS = ("triplet", "normalized_softmax", "untrained")


def bench(folder, store, engine="ray", address=None):
    means = Execution(
        engine=engine, address=address, workers=2 if engine == "local" else None, device="cpu"
    )
    run_bench(f"folder:{folder}", METHODS, customise(protocols["quick"], MINI), Path(store), means)


if __name__ == "__main__":
    bench(sys.argv[1], sys.argv[2], "ray", *sys.argv[3:])
