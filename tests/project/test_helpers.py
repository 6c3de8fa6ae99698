"""What the tests rely on themselves: a process that hangs is stopped, with all that it started, and the test fails."""

import multiprocessing
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.processes import run_process, spawn

# A launcher as torchrun is: its worker is in a session of its own.
LAUNCHER = """
import pathlib, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(worker.pid))
print("launched", flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def second_hangs(rank: int, folder: str) -> None:
    """The first has finished before the second begins to hang."""
    Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
    time.sleep(600 * rank)


def second_breaks(rank: int) -> None:
    if rank:
        raise ValueError("the second broke")
    time.sleep(600)


def test_spawned_processes_that_hang_are_killed(tmp_path):
    start = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match=r"second_hangs, processes \[.*1\] still ran after 8 s"):
        spawn(second_hangs, str(tmp_path), timeout=8)
    assert 8 <= time.monotonic() - start < 100
    assert not multiprocessing.active_children()
    assert not any(is_running(int(file.read_text())) for file in tmp_path.glob("pid-*"))


def test_a_spawned_process_that_breaks_stops_the_other():
    with pytest.raises(Exception, match="the second broke"):
        spawn(second_breaks)
    assert not multiprocessing.active_children()


def test_a_launcher_is_killed_with_its_workers(tmp_path):
    with pytest.raises(pytest.fail.Exception, match="(?s)killed after 5 s: .*launched"):
        run_process([sys.executable, "-c", LAUNCHER, tmp_path / "pid"], timeout=5)
    worker = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30  # it is no child of ours: the system clears it away
    while is_running(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)
