"""Many clients at once: nobody is lost, nothing grows. See `benchmarks/service.py` too."""

import asyncio
import contextlib
import gc
import random
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import pytest

from assay.index import Index, Wanted, update
from assay.web.metrics import resident_bytes
from serving import FakeIndex, build_index, draw, make_pictures, png, serving, with_settings

QUERIES = [png(draw(colour, "disc", seed)) for colour in ("red", "blue") for seed in range(5)]


async def load(address, clients, seconds, change=None):
    """Search with many clients; return how often each status and each version came."""
    statuses, versions = Counter(), Counter()
    started = time.monotonic()

    async def search(number):
        chance = random.Random(number)
        async with httpx.AsyncClient(base_url=address, timeout=60, verify=False) as client:
            while time.monotonic() - started < seconds:
                files = {"image": ("a.png", chance.choice(QUERIES))}
                answer = await client.post("/api/search", files=files)
                statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    versions[answer.json()["version"]] += 1
                    thumbnail = chance.choice(answer.json()["matches"])["thumbnail"]
                    statuses[(await client.get(thumbnail)).status_code] += 1

    async def changing():
        while change and time.monotonic() - started < seconds - 0.5:
            await asyncio.sleep(0.4)
            await asyncio.to_thread(change)

    await asyncio.gather(changing(), *(search(number) for number in range(clients)))
    return statuses, versions


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("pictures"))


def test_fifty_clients_are_all_answered(pictures):
    with serving(lambda: FakeIndex(pictures), with_settings(queue=100)) as served:
        statuses, _ = asyncio.run(load(served.url, 50, 3))
        assert set(statuses) == {200} and statuses[200] > 50
        service = served.service
        assert (service.searches.taken, service.uploads.held, service.metrics.in_flight) == (
            0,
            0,
            0,
        )


def test_no_client_notices_that_the_index_changes(pictures):
    opened = []

    def open_index():
        opened.append(FakeIndex(pictures, len(opened) + 1))
        return opened[-1]

    with serving(open_index, with_settings(queue=100)) as served:

        def change():
            for index in opened:
                index.current = False
            served.service.index.refresh()

        statuses, versions = asyncio.run(load(served.url, 12, 3, change))
        assert set(statuses) == {200}
        assert len(versions) >= 4
    assert all(index.closed == 1 for index in opened)


@pytest.mark.slow
def test_a_real_index_is_updated_without_losing_a_request(tmp_path):
    pictures = make_pictures(tmp_path / "pictures")
    folder = build_index(pictures, tmp_path / "index")
    added = iter(range(100, 200))

    def change():
        draw("gold", "disc", next(added)).save(pictures / "gold" / f"disc {next(added)}.png")
        build_index(pictures, folder)

    with serving(lambda: Index.open(folder), with_settings(queue=100)) as served:
        statuses, versions = asyncio.run(load(served.url, 8, 15, change))
        assert set(statuses) == {200} and len(versions) >= 3
        assert served.client.get("/api/health").json()["problem"] is None


@pytest.mark.slow
def test_memory_does_not_grow_under_load(pictures):
    with serving(lambda: FakeIndex(pictures), with_settings(queue=100)) as served:
        sizes = []
        for _ in range(4):
            asyncio.run(load(served.url, 20, 5))
            gc.collect()
            sizes.append(resident_bytes())
        assert sizes[-1] < 1.1 * sizes[1], sizes


def opened_below(folder):
    """Return the files below a folder that this process holds open or maps, and all open ones."""
    links = []
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the file through which they are listed
            links.append(str(number.readlink()))
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = [*links, *(line.split(maxsplit=5)[-1] for line in maps)]
    return {path for path in paths if path.startswith(f"{folder}/")}, len(links)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")
def test_versions_of_a_real_index_leave_no_open_file_behind(tmp_path):
    folder, chance = tmp_path / "index", np.random.default_rng(0)
    Index.build("as_is", chance.standard_normal((50, 8)), folder).close()
    with serving(lambda: Index.open(folder)) as served:
        counts = []
        for _ in range(30):
            update(folder, "as_is", chance.standard_normal((50, 8)), Wanted(prune=True))
            assert served.service.index.refresh()
            answer = served.search(id="7", k=3).json()
            assert len(answer["matches"]) == 3
            below, count = opened_below(folder)
            assert below and all(f"/v{answer['version']:06}/" in path for path in below), below
            counts.append(count)
        assert answer["version"] == 31
        assert max(counts[10:]) <= max(counts[:10]), counts
