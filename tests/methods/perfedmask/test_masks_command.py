"""``sparsona masks``: who trains what, in words and as a picture, and which budget suits a device."""

import json

import pytest

from command import enter, ok, refused
from sparsona.methods.perfedmask.step_time import SHARES, StepTime, propose_budget

LIST = "variants.perfedmask.method.budget=[0.5]"
RECIPE = ("perfedmask/small/main", "variants.perfedmask.method.budget=0.25")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)


def test_masks_by_hand(tmp_path):
    """Layers of 4160, 6240, 6208, 3120 and 1568; a quarter of the body is 5324, of which 3120 + 1568 is the most."""
    done = ok("masks", *RECIPE, "--out", "a/m.png")
    told = " ".join(done.stdout.split())
    assert "20 devices, 5 layers of 21,296 parameters" in told
    assert "0-9 │ 5,324 │ 4,688 │ 636 │ ...##" in told
    assert "10-19 │ 21,296 │ 21,296 │ 0 │ #####" in told
    assert "bias 10,648 + slack 6,360 = 17,008: proven optimal" in told
    assert (tmp_path / "a" / "m.png").read_bytes().startswith(b"\x89PNG")


def test_masks_as_json():
    found = json.loads(ok("masks", *RECIPE, "--json").stdout)
    assert [layer["parameters"] for layer in found["layers"]] == [4160, 6240, 6208, 3120, 1568]
    assert found["layers"][0]["name"] == "hidden.0"
    weak, strong = found["devices"]
    assert weak == {"devices": list(range(10)), "budget": 5324, "trained": 4688, "slack": 636, "layers": [3, 4]}
    assert strong["layers"] == [0, 1, 2, 3, 4]
    assert (found["bias"], found["slack"], found["gap"]) == (pytest.approx(10648), 6360, 0)


def test_a_variant_can_be_chosen():
    assert json.loads(ok("masks", "perfedmask/small/ablations", "--only", "random-masks", "--json").stdout)[
        "variant"
    ] == ("random-masks")
    assert "this is variant frozen head; choose another with --only" in ok("masks", "perfedmask/small/ablations").stdout


def test_the_budget_that_suits_this_device():
    found = json.loads(ok("masks", *RECIPE, "--measure", "--step", "100000", "--json").stdout)
    assert found["budget"] == 1.0
    assert [step["budget"] for step in found["steps"]] == list(SHARES)
    assert [step["trained"] for step in found["steps"]][::4] == [21296, 4688]
    assert found["steps"][-1]["trained"] == 0  # 1331 is below the smallest layer
    took = [step["milliseconds"] for step in found["steps"]]
    assert took == sorted(took, reverse=True)  # a smaller budget never costs more
    assert took[-1] > 0
    assert "--step " in ok("masks", *RECIPE, "--measure").stdout
    assert "no budget keeps a step within 1e-06 ms" in ok("masks", *RECIPE, "--measure", "--step", "1e-6").stdout


def test_the_largest_budget_in_time_is_proposed():
    steps = [StepTime(1.0, 100, 8.0), StepTime(0.5, 50, 6.0), StepTime(0.25, 25, 4.0), StepTime(0.125, 0, 0.1)]
    assert propose_budget(steps, 6.0) == steps[1]
    assert propose_budget(steps, 5.0) == steps[2]
    assert propose_budget(steps, 1.0) is None  # at which nothing would be trained


def test_bad_input():
    assert 'recipe "quickstart" has no layer masks; expected method.name = "perfedmask"' in refused(
        "masks", "quickstart"
    )
    assert "step: 2 is not allowed; expected a number of milliseconds > 0, together with --measure" in refused(
        "masks", *RECIPE, "--step", "2"
    )
    for measure in ([], ["--measure"]):
        assert "a list of 1 is not allowed; expected 20" in refused("masks", *RECIPE, *measure, LIST)
    assert "step: 0 is not allowed; expected a number of milliseconds > 0" in refused(
        "masks", *RECIPE, "--measure", "--step", "0"
    )


def test_changes_need_only_suit_the_variant_that_is_shown(tmp_path):
    few = ("data.clients=4", "method.budget=[0.2,0.2,0.5,1.0]", "--out", str(tmp_path / "m.png"), "--json")
    told = json.loads(ok("masks", "perfedmask/small/main", *few).stdout)
    assert told["variant"] == "perfedmask all-devices"
    assert 'variant fedavg has no layer masks; expected method.name = "perfedmask"' in refused(
        "masks", "perfedmask/small/main", "--only", "fedavg"
    )
