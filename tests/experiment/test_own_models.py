"""Users' own models: functions and classes with arguments, first weights from files, and samples to try them on."""

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import small
import sparsona
from sparsona.experiment.export import export
from sparsona.experiment.objects import Objects
from sparsona.experiment.recipe import RecipeError, tables
from sparsona.experiment.results import Run
from sparsona.experiment.runner import resume, run
from sparsona.experiment.setup import prepare
from sparsona.experiment.weights import pinned
from sparsona.models import build

MODULE = '''
import math
from torch import nn

def make(classes, shape, hidden=8, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden, bias), nn.ReLU(), nn.Linear(hidden, classes))

def anything(**options):
    return make(10, (1, 8, 8), **options)

class Dark(nn.Module):
    """Refuses pictures without a bright pixel, as a padding mask would."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        if (x.std(dim=(1, 2, 3)) < 0.5).any():
            raise ValueError("a picture without contrast")
        return self.head(x.flatten(1))
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module in the current folder."""
    (tmp_path / "my_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)


def parameters(**model) -> int:
    return prepare(small.recipe(model=model))[0].task.layout.params


@pytest.mark.usefixtures("own")
def test_a_function_takes_arguments():
    assert parameters(name="my_models:make") == 64 * 8 + 8 + 8 * 10 + 10
    assert parameters(name="my_models:make", args={"hidden": 3, "bias": False}) == 64 * 3 + 3 * 10 + 10
    assert parameters(name="my_models:anything", args={"hidden": 3}) == 64 * 3 + 3 + 3 * 10 + 10
    assert parameters(name="digits-mlp", args={"hidden": [5]}) == 64 * 5 + 5 + 5 * 10 + 10


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"depth": 2}, 'model.args.depth: no such argument of "my_models:make"; allowed: hidden, bias'),
        ({"classes": 3}, "model.args.classes is not allowed; leave it out"),
        ({"hidden": "many"}, 'model "my_models:make" cannot be built for 10 classes'),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(args, says):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        prepare(small.recipe(model={"name": "my_models:make", "args": args}))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("own")
def test_a_model_is_tried_on_real_samples():
    """What the built-in example is too dark for, a picture of the data is not."""
    device, _ = prepare(small.recipe(model={"name": "my_models:Dark"}))
    assert device.task.layout.params == 650


@pytest.mark.usefixtures("own")
def test_a_run_starts_from_weights_and_engines_agree(tmp_path):
    first = run(small.recipe(rounds=1), tmp_path / "first")
    made = export(first, 2, tmp_path / "two.safetensors")
    recipe = small.recipe(rounds=2, model={"weights": "two.safetensors"})
    assert recipe.model.weights == str((tmp_path / "two.safetensors").resolve())
    device, _ = prepare(recipe)
    stored = load_file(made["file"])
    assert all(torch.equal(t, stored[name]) for name, t in device.task.layout.unflatten(device.theta0).items())
    here = run(recipe, tmp_path / "here")
    there = run(small.recipe(rounds=2, engine="pool", model={"weights": "two.safetensors"}), tmp_path / "there")
    assert list(here.rows("clients")) == list(there.rows("clients"))
    assert list(here.rows("clients")) != list(run(small.recipe(rounds=2)).rows("clients"))
    assert Run.open(tmp_path / "here").recipe == recipe
    (tmp_path / "two.safetensors").unlink()
    assert Run.open(tmp_path / "here").recipe == recipe  # reading needs no file


def tensors():
    device, _ = prepare(small.recipe())
    return {name: t.clone() for name, t in device.task.layout.unflatten(device.theta0).items()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("head.bias"), "lacks the tensor head.bias [10] of the model"),
        (lambda t: t.update(extra=torch.zeros(2)), "has the tensor extra, which the model does not have"),
        (lambda t: t.update({"head.bias": torch.zeros(3)}), "tensor head.bias is [3]; expected [10]"),
        (lambda t: t["head.bias"].fill_(float("nan")), "tensor head.bias holds NaN or Inf"),
        (lambda t: t.update({"head.bias": torch.zeros(10, dtype=torch.int64)}), "is torch.int64; expected floats"),
        (
            lambda t: [t.update({f"models.0.{n}": t.pop(n)}) for n in list(t)],
            "ensemble of several models; expected one model",
        ),
    ],
)
def test_weights_that_do_not_fit_are_one_line(change, says, tmp_path):
    held = tensors()
    change(held)
    file = tmp_path / "w.safetensors"
    save_file(held, file)
    with pytest.raises(RecipeError, match=re.escape(says)) as error:
        run(small.recipe(model={"weights": str(file)}), tmp_path / "run")
    assert str(error.value).startswith(f'model.weights: "{file}"')
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_what_is_no_file_of_weights_is_refused(tmp_path):
    with pytest.raises(
        RecipeError, match=r'model.weights: "w.pt" is not allowed; expected the path of a .safetensors ' r"file"
    ):
        small.recipe(model={"weights": "w.pt"})
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    for name, says in (("w", "is not a safetensors file"), ("none", "cannot be read here: No such file")):
        with pytest.raises(RecipeError, match=says):
            prepare(small.recipe(model={"weights": str(tmp_path / f"{name}.safetensors")}))


def test_half_precision_and_names_of_counters_are_taken(tmp_path):
    held = {name: t.to(torch.float16) for name, t in tensors().items()}
    save_file(held, tmp_path / "w.safetensors")
    device, _ = prepare(small.recipe(model={"weights": str(tmp_path / "w.safetensors")}))
    named = device.task.layout.unflatten(device.theta0)
    assert all(torch.equal(named[name], t.float()) for name, t in held.items())


def test_a_pinned_file_must_keep_its_contents(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file(tensors(), file)
    pin = pinned(str(file))
    recipe = small.recipe(model={"weights": pin})
    assert recipe.model.weights == pin
    prepare(recipe)
    save_file({name: t + 1 for name, t in tensors().items()}, file)
    with pytest.raises(RecipeError, match=r'model\.weights: ".*" differs from the file that the run was started with'):
        prepare(recipe)


def test_a_model_given_as_an_object(tmp_path):
    class Tiny(nn.Sequential):
        def __init__(self, classes, hidden=4):
            super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, classes))

    done = sparsona.run(small.recipe(rounds=1, model={"args": {"hidden": 3}}), tmp_path / "a", model=Tiny)
    assert tables(done.recipe)["model"] == {"name": "<Tiny>", "width": 1.0, "args": {"hidden": 3}}
    assert Run.open(tmp_path / "a").recipe.model.name == "<Tiny>"
    with pytest.raises(
        RecipeError,
        match=r'engine\.name: worker processes of "pool" cannot import the model <Tiny>, '
        r"which is defined in test_own_models",
    ):
        sparsona.run(small.recipe(engine="pool"), model=Tiny)
    with pytest.raises(RecipeError, match=r'model\.name: "<Tiny>" is a Python object; pass it again'):
        prepare(done.recipe)
    with pytest.raises(RecipeError, match=r"model: int is not allowed; expected a torch\.nn\.Module"):
        sparsona.run(small.recipe(), model=3)


def test_a_module_is_copied_and_its_weights_are_the_start():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    before = {name: t.clone() for name, t in module.state_dict().items()}
    device, _ = prepare(small.recipe(), objects=Objects(model=module))
    assert torch.equal(device.task.layout.unflatten(device.theta0)["1.weight"], before["1.weight"])
    sparsona.run(small.recipe(rounds=1), model=module)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_a_model_that_fails_is_named_by_its_class_or_function():
    class Small(nn.Linear):
        pass

    def made():
        return Small(3, 10)

    for model, name in ((Small(3, 10), "Small"), (made, "made")):
        with pytest.raises(ValueError, match=rf'^model "{name}" does not fit inputs of shape'):
            sparsona.run(small.recipe(), model=model)


def test_a_run_is_resumed_with_its_own_model(tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    whole = sparsona.run(small.recipe(), tmp_path / "whole", model=model)
    with pytest.raises(KeyboardInterrupt):
        sparsona.run(small.recipe(), tmp_path / "cut", model=model, on_round=stop)
    with pytest.raises(RecipeError, match=r'model\.name: "<Sequential>" is a Python object; pass it again'):
        resume(tmp_path / "cut")
    again = sparsona.resume(tmp_path / "cut", model=model)
    assert list(again.rows("clients")) == list(whole.rows("clients"))


def test_a_model_of_double_precision_is_named():
    with pytest.raises(ValueError, match=r"parameter weight is float64; expected float32, as from model.float\(\)"):
        build(lambda: nn.Linear(4, 2, dtype=torch.float64), 2, (4,))
