"""What a computer with Windows sees, as far as it can be tried elsewhere: it has no fcntl, and no pool of workers."""

import subprocess
import sys
from pathlib import Path

import pytest

from sparsona.experiment.checking import RecipeError
from sparsona.experiment.engine import EngineConfig, devices_for
from sparsona.fleet import FleetError
from sparsona.fleet.processes import exclusive_lock


def test_the_command_line_starts_without_fcntl_and_sighup() -> None:
    code = """
import signal, sys
sys.modules["fcntl"] = None
del signal.SIGHUP
sys.argv = ["sparsona", "show", "engine"]
from sparsona.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "workers" in done.stdout


def test_a_fleet_without_fcntl_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(FleetError, match="run on Linux only"), exclusive_lock(tmp_path / "lock", "taken"):
        pass


def test_the_pool_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RecipeError, match=r'"pool" does not run on Windows; set engine.name = "local"'):
        devices_for(EngineConfig())
    monkeypatch.undo()
    assert devices_for(EngineConfig(device="cpu")) == ("cpu",)
