"""What the tests rely on themselves: processes that start fast, and that end when they hang, with all they started."""

import multiprocessing
import os
import re
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.processes import fast_python, run_process, spawn, start_process

# A launcher as torchrun is: its worker is in a session of its own.
LAUNCHER = """
import pathlib, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(worker.pid))
print("launched", flush=True)
time.sleep(600)
"""


WAIT = "import os, time; open('pid', 'w').write(f'{os.getpid()}.'); time.sleep(600)"


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


def test_a_fast_python_does_as_it_is_told(tmp_path):
    """Words, folder, environment, streams and exit status; what reads the environment is not imported before."""
    code = "import os, sys; print(sys.argv[1:], os.getcwd(), dict(os.environ), input(), 'transformers' in sys.modules)"
    (tmp_path / "input").write_text("hello")
    with open(tmp_path / "input") as file:
        command = [fast_python(), "-c", f"{code}; sys.exit('sorry')", "a b"]
        done = run_process(command, cwd=tmp_path, env={"COLOUR": "red"}, stdin=file)
    assert done.returncode == 1 and done.stderr == "sorry\n"
    assert re.fullmatch(rf"\['a b'\] {tmp_path} {{'COLOUR': 'red'.*}} hello False\n", done.stdout)


def test_a_fast_python_is_killed_with_the_process_that_stands_for_it(tmp_path):
    process = start_process([fast_python(), "-c", WAIT], cwd=tmp_path)
    deadline = time.monotonic() + 100
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("."):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.communicate()
    while is_running(int((tmp_path / "pid").read_text()[:-1])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
