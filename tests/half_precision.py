"""Scripts with bfloat16 products, which end the process on some CPUs."""

import json
import os
import subprocess
import sys
from typing import Any


def run_script(script: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Run the script on the names of losses in its own process, where oneDNN is held back from the
    start; return the JSON that it prints.
    """
    process = subprocess.run(
        [sys.executable, "-c", script, json.dumps(names)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    results: dict[str, dict[str, Any]] = json.loads(process.stdout)
    return results
