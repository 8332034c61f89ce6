"""Files are whole or not there, whatever dies and whenever."""

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from assay.cli.app import _explain
from assay.files import (
    DRAFT,
    cache_folder,
    lock_in_turn,
    lock_now,
    new_folder,
    read_json,
    remove_drafts,
    remove_drafts_in,
    usable_cache,
    write_atomically,
)
from assay.npz import write_npy
from assay.workers.program import describe_failure

HELD_LOCK = """
import sys
import threading
import time
from pathlib import Path
from assay.files import lock_now
with lock_now(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_killed(code: str, folder: Path) -> None:
    """Run the code in a process of its own, which must end by SIGKILL."""
    code = f"import os, signal, sys\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n{code}"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@contextmanager
def limit_on_files(size: int) -> Iterator[None]:
    """Let no file be longer than so many bytes inside the block, as `ulimit -f` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_on_the_size_of_a_file_is_reported_in_one_line_with_its_remedy(
    tmp_path: Path,
) -> None:
    for name, write in (
        ("f", lambda: write_atomically(tmp_path / "f", bytes(9000))),
        ("folder", lambda: write_array(tmp_path / "folder")),
    ):
        with limit_on_files(5000), pytest.raises(OSError, match="File too large") as raised:
            write()
        assert describe_failure(raised.value) is raised.value, "a worker adds no traceback"
        assert _explain(raised.value) == (
            f"{tmp_path / name}: File too large; raise the limit on the size of a file (ulimit -f)"
            " and run the same command again: nothing finished is lost"
        )
    assert names_in(tmp_path) == []


def write_array(folder: Path) -> None:
    with new_folder(folder) as draft:
        write_npy(draft / "x.npy", np.zeros(9000, dtype=np.float32))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (7,), (5, 3)])
@pytest.mark.parametrize("kind", ["int64", "float32", "bool", "U3"])
def test_an_array_is_written_as_numpy_writes_it(
    tmp_path: Path, shape: tuple[int, ...], kind: str
) -> None:
    array, expected = np.ones(shape).astype(kind), BytesIO()
    np.save(expected, array)
    write_npy(tmp_path / "x.npy", array)
    assert (tmp_path / "x.npy").read_bytes() == expected.getvalue()


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("content", ["text, ü", b"\x00bytes\xff", "", b""])
def test_what_was_written_is_read_back(tmp_path: Path, content: bytes | str) -> None:
    write_atomically(tmp_path / "deep" / "down" / "f", content)
    expected = content.encode() if isinstance(content, str) else content
    assert (tmp_path / "deep" / "down" / "f").read_bytes() == expected
    assert names_in(tmp_path / "deep" / "down") == ["f"]


def test_a_new_content_replaces_the_old(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", "a long old content")
    write_atomically(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "new"


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", "x")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644


def test_an_exception_while_writing_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "f", "old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"
    assert names_in(tmp_path) == ["f"]


def test_text_that_cannot_be_encoded_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path,
) -> None:
    write_atomically(tmp_path / "f", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "f", "\udcff")
    assert (tmp_path / "f").read_text() == "old"
    assert names_in(tmp_path) == ["f"]


def test_an_interrupt_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "f", "new")
    assert names_in(tmp_path) == []


def test_a_folder_in_the_way_of_a_file_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "f" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "f", "new")
    assert names_in(tmp_path) == ["f"]
    assert names_in(tmp_path / "f") == ["inside"]


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", "old")
    run_killed(
        "from assay.files import write_atomically\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomically(folder / 'f', 'new')",
        tmp_path,
    )
    assert (tmp_path / "f").read_text() == "old"


def test_what_a_process_killed_while_writing_left_is_cleared(tmp_path: Path) -> None:
    run_killed(
        "from assay.files import write_atomically\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomically(folder / 'f', 'new')",
        tmp_path,
    )
    remove_drafts(tmp_path)
    assert names_in(tmp_path) == []


def test_json_is_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes('{"name": "ü"}'.encode())
    assert read_json(tmp_path / "f") == {"name": "ü"}


def test_a_new_folder_appears_whole_on_leaving(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    with new_folder(final) as draft:
        (draft / "a").write_text("a")
        (draft / "inner").mkdir()
        (draft / "inner" / "b").write_text("b")
        assert not final.exists()
    assert names_in(final) == ["a", "inner"]
    assert (final / "inner" / "b").read_text() == "b"
    assert names_in(final.parent) == ["final"]
    assert stat.S_IMODE(final.stat().st_mode) == 0o755


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_new_folder_does_not_appear_after_an_exception(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def fill_and_fail() -> None:
        with new_folder(tmp_path / "final") as draft:
            (draft / "a").write_text("a")
            raise error

    with pytest.raises(error):
        fill_and_fail()
    assert names_in(tmp_path) == []


def test_a_new_folder_does_not_appear_when_it_cannot_be_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "final") as draft:
            (draft / "a").write_text("a")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        fill()
    assert names_in(tmp_path) == []


def test_the_first_folder_placed_stays(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with new_folder(tmp_path / "final") as draft:
            (draft / "a").write_text(content)
            (draft / content).touch()
    assert (tmp_path / "final" / "a").read_text() == "first"
    assert names_in(tmp_path / "final") == ["a", "first"]
    assert names_in(tmp_path) == ["final"]


def test_of_two_folders_filled_at_once_the_first_finished_stays(tmp_path: Path) -> None:
    with new_folder(tmp_path / "final") as slow:
        (slow / "a").write_text("slow")
        with new_folder(tmp_path / "final") as fast:
            (fast / "a").write_text("fast")
    assert (tmp_path / "final" / "a").read_text() == "fast"
    assert names_in(tmp_path) == ["final"]


def test_a_file_in_the_way_of_a_new_folder_is_an_error(tmp_path: Path) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "final") as draft:
            (draft / "a").touch()

    (tmp_path / "final").write_text("in the way")
    with pytest.raises(OSError, match="directory"):
        fill()
    assert (tmp_path / "final").read_text() == "in the way"
    assert names_in(tmp_path) == ["final"]


def test_a_process_killed_while_filling_leaves_a_draft_that_is_cleared(tmp_path: Path) -> None:
    run_killed(
        "from assay.files import new_folder\n"
        "with new_folder(folder / 'aa' / 'final') as draft:\n"
        "    (draft / 'a').write_text('half')\n"
        "    (draft / 'inner').mkdir()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)",
        tmp_path,
    )
    left = names_in(tmp_path / "aa")
    assert len(left) == 1
    assert left[0].startswith(DRAFT)
    remove_drafts(tmp_path)
    assert names_in(tmp_path / "aa") == []


def test_clearing_drafts_touches_nothing_else(tmp_path: Path) -> None:
    (tmp_path / f"{DRAFT}x" / f"{DRAFT}y").mkdir(parents=True)
    (tmp_path / "runs" / f"{DRAFT}z" / "deep").mkdir(parents=True)
    (tmp_path / "runs" / "kept").mkdir()
    (tmp_path / "runs" / "kept" / "result.json").touch()
    (tmp_path / ".hidden").touch()
    remove_drafts(tmp_path)
    assert names_in(tmp_path) == [".hidden", "runs"]
    assert names_in(tmp_path / "runs") == ["kept"]
    assert names_in(tmp_path / "runs" / "kept") == ["result.json"]


def test_drafts_of_a_folder_itself_are_cleared_and_nothing_deeper(tmp_path: Path) -> None:
    (tmp_path / f"{DRAFT}x" / "deep").mkdir(parents=True)
    (tmp_path / f"{DRAFT}y").touch()
    (tmp_path / "data" / f"{DRAFT}z").mkdir(parents=True)
    remove_drafts_in(tmp_path)
    assert names_in(tmp_path) == ["data"]
    assert names_in(tmp_path / "data") == [f"{DRAFT}z"]


def test_a_usable_cache_is_made_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "deep" / "cache"))
    assert usable_cache() == usable_cache() == tmp_path / "deep" / "cache"
    assert names_in(tmp_path / "deep" / "cache") == []


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_cache_that_cannot_be_used_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place, reason in (
        (tmp_path / "file", "File exists"),
        (tmp_path / "file" / "cache", "Not a directory"),
    ):
        monkeypatch.setenv("ASSAY_CACHE", str(place))
        with pytest.raises(
            OSError,
            match=rf"cache folder {place} cannot be used \({reason}\); set ASSAY_CACHE to a folder",
        ):
            usable_cache()
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    monkeypatch.setattr("assay.files.tempfile.TemporaryFile", refuse)
    with pytest.raises(OSError, match=r"cannot be used \(Permission denied\); set ASSAY_CACHE"):
        usable_cache()


def test_a_home_is_meant_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ASSAY_CACHE", "~/my cache")
    assert cache_folder() == tmp_path / "my cache"


def test_there_may_be_no_draft_to_clear(tmp_path: Path) -> None:
    remove_drafts(tmp_path)
    remove_drafts(tmp_path / "not there")
    assert names_in(tmp_path) == []


def test_a_draft_being_cleared_cannot_be_placed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan worker may finish while the next driver is half-way through removing its draft."""

    def remove_a_part(folder: Path, *_: object, **__: object) -> None:
        (folder / "model").unlink()

    def fill() -> None:
        with new_folder(tmp_path / "final") as draft:
            (draft / "model").touch()
            (draft / "result.json").touch()
            with monkeypatch.context() as patched:
                patched.setattr(shutil, "rmtree", remove_a_part)
                remove_drafts(tmp_path)

    try:
        fill()
    except OSError:
        assert not (tmp_path / "final").exists()
    else:
        assert names_in(tmp_path / "final") == ["model", "result.json"]


def hold(lock: Path) -> "subprocess.Popen[str]":
    """A process that holds the lock until its standard input ends."""
    command = [sys.executable, "-c", HELD_LOCK, str(lock)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_process_does_not_get_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with hold(lock) as holder:
        with pytest.raises(BlockingIOError), lock_now(lock):
            pytest.fail("two processes hold one lock")
        holder.communicate()
    with lock_now(lock):
        assert lock.exists()


def test_the_lock_is_free_after_its_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with hold(lock) as holder:
        holder.send_signal(signal.SIGKILL)
        assert holder.wait() == -signal.SIGKILL
    with lock_now(lock):
        assert lock.exists()


def test_the_lock_is_not_taken_twice_in_one_process(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock_now(lock), pytest.raises(BlockingIOError), lock_now(lock):
        pytest.fail("the lock was taken twice")


def test_the_lock_is_free_after_an_exception_inside(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with pytest.raises(ValueError, match="inside"), lock_now(lock):
        raise ValueError("inside")
    with lock_now(lock):
        assert lock.exists()


def test_who_does_not_get_the_lock_leaves_it_to_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock_now(lock):
        for _ in range(2):
            with pytest.raises(BlockingIOError), lock_now(lock):
                pytest.fail("the lock was taken twice")


def nobody_is_there() -> None:
    pytest.fail("nobody holds the lock")


def test_a_turn_leaves_no_file_behind(tmp_path: Path) -> None:
    with lock_in_turn(tmp_path / "lock", nobody_is_there):
        assert names_in(tmp_path) == ["lock"]
    with (
        pytest.raises(ValueError, match="inside"),
        lock_in_turn(tmp_path / "lock", nobody_is_there),
    ):
        raise ValueError("inside")
    assert names_in(tmp_path) == []


def test_a_turn_comes_after_that_of_the_holder(tmp_path: Path) -> None:
    lock, told = tmp_path / "lock", threading.Event()
    with hold(lock) as holder:

        def let_go() -> None:
            assert told.wait(10)
            holder.communicate()

        releasing = threading.Thread(target=let_go)
        releasing.start()
        with lock_in_turn(lock, told.set):
            assert holder.poll() is not None or holder.wait(10) is not None
        releasing.join()
    assert told.is_set()


def test_a_turn_comes_after_the_holder_was_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with hold(lock) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with lock_in_turn(lock, nobody_is_there):
        assert lock.exists()


def test_no_two_are_inside_at_once_though_the_file_comes_and_goes(tmp_path: Path) -> None:
    """Each removes the file that others may have opened, and be waiting for, already."""
    inside, most, turns = 0, 0, 0

    def take_turns() -> None:
        nonlocal inside, most, turns
        for _ in range(50):
            with lock_in_turn(tmp_path / "lock", lambda: None):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0002)
                turns += 1
                inside -= 1

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, turns) == (1, 200)
