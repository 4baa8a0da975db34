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
        with pytest.raises(ValueError, match=r"engine.workers = 3: the Ray cluster has 2 processors"):
            run(recipe("ditto", engine="ray", workers=3))
    finally:
        ray.shutdown()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'sparsona[ray]'")
def test_what_is_kept_in_rays_memory_is_bounded_by_bytes_and_a_letter_is_read_once(tmp_path, monkeypatch):
    from sparsona.engines import ray as engine

    puts = []
    monkeypatch.setattr(engine.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(engine.ray, "put", lambda data: puts.append(data) or len(puts))
    monkeypatch.setattr(engine, "_PINNED", 100_000)
    cluster = engine.Cluster(0, "none:none", {})
    for i in range(20):
        cluster._letter(bytes([i]) * 30_000)
        assert sum(size for size, _ in cluster._refs) <= 100_000
    assert len(cluster._refs) == len(cluster._order) == 3
    (tmp_path / "letter").write_bytes(b"x" * 10_000)
    reads = []
    real = type(tmp_path).read_bytes
    monkeypatch.setattr(type(tmp_path), "read_bytes", lambda path: reads.append(path) or real(path))
    assert len({cluster._letter(tmp_path / "letter") for _ in range(5)}) == len(reads) == 1
    for i in range(20):
        cluster._letter(bytes([i]) * 30_000)  # it is forgotten
    cluster._letter(tmp_path / "letter")
    assert (len(reads), puts[-1]) == (2, b"x" * 10_000)


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(RecipeError, match=r"Ray is not installed: pip install 'sparsona\[ray\]'"):
        run(recipe(engine="ray"), tmp_path / "run")
