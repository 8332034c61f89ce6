"""What of the machine and of the software a run's bytes may depend on."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from assay.hashing import digest, digest_file

ABOVE = (
    "__init__",
    "__main__",
    "cli",
    "web",
    "report",
    "verify",
    "survey",
    "search",
    "status",
    "tables",
    "export",
    "published",
    "study",
    "engines",
)
"""Parts of Assay that cannot change what a run gives."""

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Environment:
    """What of the machine and its software a run's bytes may depend on."""

    device: str
    threads: int
    torch: str
    source: str
    images: str = ""
    """Hash of what decodes images: the code and its libraries; empty where there are none."""

    @classmethod
    def here(cls, device: str, threads: int, images: str = "") -> "Environment":
        """This process's environment."""
        return cls(device, threads, torch.__version__, own_source(), images)


@lru_cache(maxsize=1)
def own_source() -> str:
    """Hash of Assay's own source, from the bottom up to this folder."""
    files = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py"))]
    return digest(
        [
            [path.as_posix(), digest_file(ROOT / path)]
            for path in files
            if path.parts[0].removesuffix(".py") not in ABOVE
        ]
    )
