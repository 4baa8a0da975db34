"""Ray's workers give the same bits as the local engine."""

import importlib.util

import pytest

from engines.test_engines import files
from small import recipe
from sparsona.config import RecipeError
from sparsona.runner import run


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'sparsona[ray]'")
def test_ray_equals_local_to_the_bit(tmp_path):
    """One cluster for several runs: a star, one whose server knows its clients, and peers."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for method in ("ditto", "fedspa", "dadpfl"):
            more = {"results": {"models": True, "figures": False}}
            run(recipe(method, **more), tmp_path / method / "local")
            run(recipe(method, engine="ray", **more), tmp_path / method / "ray")
            assert files(tmp_path / method / "ray") == files(tmp_path / method / "local")
    finally:
        ray.shutdown()


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(RecipeError, match=r"Ray is not installed: pip install 'sparsona\[ray\]'"):
        run(recipe(engine="ray"), tmp_path / "run")
