"""The service under load: 50 clients at once, and a new version of the index meanwhile.

python benchmarks/service.py [--seconds 60] [--clients 50]

A real `assay serve` on the loopback, with an index of 2,000 drawn images and an untrained network
at 64 pixels: what is measured is the service, not the search. Clients run in one other process, so
the machine is shared. Fails where a request fails, or where the service's memory grows after its
warm-up.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import torch
from PIL import Image, ImageDraw

from assay.embedder import Embedder
from assay.index import Index
from assay.model import Architecture, untrained_model

SERVE = [sys.executable, "-m", "assay", "serve"]
IMAGES, LATER, QUERIES, SIDE = 2000, 100, 200, 160
WARM_UP = 10.0
"""Seconds after which memory is not to grow."""

GROWTH = 1.10
"""Memory at the end over memory after the warm-up, at most."""


@dataclass
class Load:
    """What the clients saw.

    Args:
        seconds: time of each request.
        statuses: how often each status, or kind of error, came.
        versions: how often each version of the index answered.
        memory: memory of the service in bytes, by the time since the start.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)

    @property
    def failures(self) -> dict[str, int]:
        """Everything that is not an answer."""
        return {status: count for status, count in self.statuses.items() if status != "200"}


def draw(seed: int) -> Image.Image:
    """Return a picture of some coloured shapes."""
    chance = random.Random(seed)

    def colour() -> tuple[int, int, int]:
        return chance.randrange(256), chance.randrange(256), chance.randrange(256)

    image = Image.new("RGB", (SIDE, SIDE), colour())
    pencil = ImageDraw.Draw(image)
    for _ in range(6):
        left, top = chance.randrange(SIDE), chance.randrange(SIDE)
        box = (left, top, left + chance.randrange(10, 80), top + chance.randrange(10, 80))
        (pencil.ellipse if chance.random() < 0.5 else pencil.rectangle)(box, fill=colour())
    return image


def write_images(folder: Path, seeds: range) -> None:
    for seed in seeds:
        path = folder / f"class {seed % 20}" / f"{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(seed).save(path, quality=90)


def build(images: Path, out: Path) -> None:
    """Index the images, or bring the index up to date."""
    torch.manual_seed(0)
    model = untrained_model(Architecture("conv", 3, 64, 0), "none").eval()
    Index.build(Embedder(model, {"trunk": "conv"}, torch.device("cpu")), str(images), out).close()


def resident(process: int) -> int:
    """Return the memory of a process in bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


@contextmanager
def serving(index: Path) -> Iterator[tuple[str, int]]:
    """Run the service; yield its address and the number of its process."""
    command = [*SERVE, str(index), "--port", "0", "--queue", "200"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as running,
    ):
        assert running.stdout is not None
        said = running.stdout.readline()
        if "http://" not in said:
            log.seek(0)
            raise SystemExit(f"the service did not start: {said}{log.read()}")
        yield next(word for word in said.split() if word.startswith("http://")), running.pid
        running.terminate()
        print(f"SIGTERM: exit code {running.wait(60)}")


async def run_load(
    address: str, process: int, clients: int, seconds: float, queries: list[bytes], load: Load
) -> None:
    started = time.perf_counter()

    async def search(number: int) -> None:
        chance = random.Random(number)
        async with httpx.AsyncClient(base_url=address, timeout=60, verify=False) as client:
            while time.perf_counter() - started < seconds:
                begun = time.perf_counter()
                files = {"image": ("query.jpg", chance.choice(queries))}
                try:
                    answer = await client.post("/api/search", files=files, data={"k": "10"})
                except httpx.HTTPError as error:
                    load.statuses[type(error).__name__] += 1
                    continue
                load.seconds.append(time.perf_counter() - begun)
                load.statuses[str(answer.status_code)] += 1
                if answer.status_code == 200:
                    load.versions[answer.json()["version"]] += 1
                    shown = chance.choice(answer.json()["matches"])["thumbnail"]
                    if number % 5 == 0:
                        picture = await client.get(shown)
                        load.statuses[str(picture.status_code)] += 1

    async def watch() -> None:
        while time.perf_counter() - started < seconds:
            load.memory.append((time.perf_counter() - started, resident(process)))
            await asyncio.sleep(1)

    await asyncio.gather(watch(), *(search(number) for number in range(clients)))


def report(title: str, load: Load, clients: int, seconds: float) -> None:
    times = np.array(load.seconds)
    p50, p95, p99 = 1000 * np.quantile(times, [0.5, 0.95, 0.99])
    print(
        f"{title}: {clients} clients, {seconds:.0f} s: {len(times):,} searches,"
        f" {len(times) / seconds:.0f} a second; p50 {p50:.0f} ms, p95 {p95:.0f} ms,"
        f" p99 {p99:.0f} ms, slowest {1000 * times.max():.0f} ms"
    )
    print(f"  answers by status {dict(load.statuses)}, by version {dict(load.versions)}")


def memory_at(load: Load, seconds: float) -> float:
    """Return the memory at a time in MB."""
    return min(load.memory, key=lambda one: abs(one[0] - seconds))[1] / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--write", nargs=2, type=Path, metavar=("IMAGES", "INDEX"))
    asked = parser.parse_args()
    if asked.write:
        build(*asked.write)
        return
    queries = []
    for seed in range(QUERIES):
        stream = BytesIO()
        draw(1_000_000 + seed).save(stream, "JPEG", quality=90)
        queries.append(stream.getvalue())
    with tempfile.TemporaryDirectory() as folder:
        images, index = Path(folder) / "images", Path(folder) / "index"
        write_images(images, range(IMAGES))
        build(images, index)
        with serving(index) as (address, process):
            load = Load()
            length = max(asked.seconds, 2 * WARM_UP)
            asyncio.run(run_load(address, process, asked.clients, length, queries, load))
            report("steady", load, asked.clients, length)
            warm, middle, end = (memory_at(load, at) for at in (WARM_UP, length / 2, length))
            print(
                f"  memory: start {load.memory[0][1] / 1e6:.0f} MB, after {WARM_UP:.0f} s"
                f" {warm:.0f} MB, middle {middle:.0f} MB, end {end:.0f} MB"
            )
            changing = Load()
            write_images(images, range(IMAGES, IMAGES + LATER))
            writer = subprocess.Popen([sys.executable, __file__, "--write", images, index])
            asyncio.run(run_load(address, process, asked.clients, length / 2, queries, changing))
            if writer.wait(600):
                raise SystemExit("the writer failed")
            report("with a new version", changing, asked.clients, length / 2)
            after = changing.memory[-1][1] / 1e6
            print(f"  memory at the end {after:.0f} MB")
    wrong = {**load.failures, **changing.failures}
    if wrong:
        raise SystemExit(f"requests failed: {wrong}")
    if set(changing.versions) != {1, 2}:
        raise SystemExit(f"the new version did not take its place: {dict(changing.versions)}")
    if end > GROWTH * warm:
        raise SystemExit(f"memory grew from {warm:.0f} MB to {end:.0f} MB")


if __name__ == "__main__":
    main()
