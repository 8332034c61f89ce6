"""A killed update of an index leaves the old state or the new one, and the next run finishes it.

The command is killed at system calls that change a file of the index, chosen at random from all
that an undisturbed run makes (see kills.py).
"""

import random
import shutil

import numpy as np
import pytest

from assay.index.builder import Wanted, update
from assay.index.checking import problems_of
from assay.index.manifest import is_index
from indexes import draw, make_model, make_photos, make_vectors, save_vectors, state_of
from kills import changes, kill_at, run, strace_works

KILLS = 20


class Scene:
    """An update of an index: the words of the command and the folder that it begins with."""

    def __init__(self, folder, before, words):
        self.place, self.before, self.words = folder / "index", before, words
        self.folder = folder
        self.begin()
        self.points = changes(words, folder, self.place)
        self.new = state_of(self.place)
        self.begin()
        self.old = state_of(self.place) if is_index(self.place) else None

    def begin(self):
        shutil.rmtree(self.place, ignore_errors=True)
        if self.before is not None:
            shutil.copytree(self.before, self.place)

    def kill(self, point):
        """Kill the update at a system call, and check what it left and what the next run does.

        Return whether it was killed, and whether the new state was in place by then.
        """
        self.begin()
        ended = kill_at(point, self.words, self.folder)
        if ended.code == 0:
            return None
        assert ended.code == -9, ended.said
        found = None
        if is_index(self.place):
            assert problems_of(self.place) == [], point
            found = state_of(self.place)
        assert found in (self.old, self.new), point
        again = run(self.words, self.folder)
        assert again.code == 0, (point, again.said)
        assert state_of(self.place) == self.new, point
        assert problems_of(self.place) == [], point
        left = [path.name for path in self.place.iterdir()]
        assert sorted(left) == [".lock", "index.json", "models", "versions"], point
        assert len(list((self.place / "versions").iterdir())) == 1
        return found == self.new


def vectors_scene(folder):
    """Vectors that are added, changed and removed, until rows are numbered anew."""
    z = make_vectors(40)
    update(folder / "before", "as_is", z, Wanted(backend="exact"))
    z[:12] = np.flipud(z[:12]) + 1
    path = save_vectors(folder / "new.npz", np.concatenate([z[:30], make_vectors(9, seed=1)]))
    words = ["index", "as_is", str(path), "--out", str(folder / "index"), "--prune"]
    return Scene(folder, folder / "before", words)


def photos_scene(folder):
    """Photos that are added, changed and removed."""
    model, photos = make_model(folder / "model"), make_photos(folder / "photos")
    update(folder / "before", model, photos, Wanted())
    draw(7).save(photos / "0" / "0.png")
    draw(8).save(photos / "1" / "new.png")
    (photos / "2" / "2.png").unlink()
    words = ["index", str(model), str(photos), "--out", str(folder / "index"), "--prune"]
    return Scene(folder, folder / "before", words)


def first_scene(folder):
    """The first run: there is no index before."""
    model, photos = make_model(folder / "model"), make_photos(folder / "photos")
    words = ["index", str(model), str(photos), "--out", str(folder / "index")]
    return Scene(folder, None, words)


def rebuild_scene(folder):
    """Another model in place of the first."""
    photos = make_photos(folder / "photos")
    other = make_model(folder / "other", seed=1)
    update(folder / "before", make_model(folder / "model"), photos, Wanted())
    words = ["index", str(other), str(photos), "--out", str(folder / "index"), "--rebuild"]
    return Scene(folder, folder / "before", words)


def check(scene, count, seed):
    """Kill the update at so many random places; the last place but few leave the new state."""
    draw = random.Random(seed)
    ended = []
    while len(ended) < count:
        outcome = scene.kill(draw.choice(scene.points))
        ended.extend([outcome] if outcome is not None else [])
    last = [scene.kill(point) for point in scene.points[-3:]]
    assert any(last), "no kill came after the new version was in place"


pytestmark = pytest.mark.skipif(not strace_works(), reason="strace is not here, or may not attach")


def test_a_killed_update_of_vectors_leaves_the_old_state_or_the_new(tmp_path):
    check(vectors_scene(tmp_path), 5, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene", [vectors_scene, photos_scene, first_scene, rebuild_scene], ids=lambda one: one.__name__
)
def test_twenty_kills_leave_the_old_state_or_the_new(tmp_path, scene):
    check(scene(tmp_path), KILLS, seed=1)
