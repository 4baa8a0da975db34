"""Personal models as files: what is written predicts as the client does, and newcomers are welcome."""

import dataclasses
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import sparsona
from command import ok, refused
from small import recipe
from sparsona.core.arithmetic import arithmetic
from sparsona.core.samples import Prepare
from sparsona.data.encoding import Encoding, Scale
from sparsona.engines.values import loads, types_of
from sparsona.experiment.export import adapt, best, export, inbox, module_of, stranger, value
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.results import RunError
from sparsona.experiment.runner import run
from sparsona.experiment.setup import newcomers, prepare
from sparsona.methods.pfedgate.scaled_model import Masked
from sparsona.models import build
from tiers import tiered

CNN = {"name": "digits-cnn"}


def finished(path, name, **more):
    """A short run with what is needed to look inside: client 0's value and inbox."""
    done = run(recipe(name, rounds=1, fleet={"per_round": 6}, **more), path)
    device, fleet = prepare(done.recipe)
    return done, device, fleet, value(done, device, 0), inbox(done, device, 0)


@pytest.mark.parametrize("how", [{"split": "rows", "budget": "layers"}, {"split": "flat"}, {"split": "channels"}])
def test_a_gated_module_equals_the_masked_model(how, tmp_path):
    """Blocks chosen from all training inputs, weights from the batch: every entry times its block's weight, or zero."""
    _, device, fleet, client, mail = finished(tmp_path / "run", "pfedgate", model=CNN, method=how)
    data, ctx = fleet.local(0), device.ctx(0, "personal", 0, 0)
    module = module_of(device, client, mail, data, 0)
    gated, theta = device.method.gated(client.keep, ctx), mail["server"]["theta"].values
    x, _ = fleet.test(0).at(torch.arange(5))
    with torch.no_grad():
        gated.load(theta, client.gate, train=False)
        chosen = gated.choose(gated.gate.model(data.train.at(torch.arange(len(data)))[0])[0].clamp(min=gated.least))
        weights = gated.gate.model(x)[1] * chosen
        want = Masked(device.task, gated.blocks)(x, gated.theta, weights, chosen)
        assert torch.allclose(module(x), want, atol=1e-5)
    assert not chosen.all()
    size = sum(p.numel() for name, p in module.named_parameters() if not name.startswith("gate."))
    kept = int(gated.blocks.sizes[chosen].sum())
    assert size < kept if how["split"] == "rows" else size == kept  # inputs that come from dropped units are gone, too


def test_client_wise_weights_are_multiplied_in(tmp_path):
    how = {"split": "rows", "adapt": "client"}
    _, device, fleet, client, mail = finished(tmp_path / "run", "pfedgate", model=CNN, method=how)
    module = module_of(device, client, mail, fleet.local(0), 0)
    x, _ = fleet.test(0).at(torch.arange(5))
    want = device.method.personal(client, mail, fleet.local(0), device.ctx(0, "personal", 0, 0)).logits(x)
    with torch.no_grad():
        assert torch.allclose(module(x), want, atol=1e-5)
    assert not any(name.startswith("gate.linear") for name, _ in module.named_parameters())


@pytest.mark.parametrize("name", ["fedem", "fedspa", "dadpfl", "fedmask", "splitmix"])
def test_modules_of_other_methods_predict_alike(name, tmp_path):
    _, device, fleet, client, mail = finished(tmp_path / "run", name)
    x, _ = fleet.test(0).at(torch.arange(5))
    want = device.personal(client, mail, fleet.local(0), 0, 0).logits(x)
    with torch.no_grad():
        assert torch.allclose(module_of(device, client, mail, fleet.local(0), 0)(x), want, atol=1e-6)


def test_exported_by_the_command(tmp_path):
    done = run(recipe("ditto", rounds=1, model=CNN, results={"models": True}), tmp_path / "run")
    file = tmp_path / "new" / "m.safetensors"
    told = json.loads(ok("export", str(done.path), "--client", "2", "--to", str(file), "--json").stdout)
    assert told["nbytes"] == file.stat().st_size
    want = load_file(done.path / "models" / "client-00002.safetensors")
    found = load_file(file)
    assert found.keys() == want.keys()
    assert all(torch.equal(found[key], want[key]) for key in want)
    build("digits-cnn", classes=10, shape=(1, 8, 8)).load_state_dict(found)
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["client"] == "2"
        assert json.loads(opened.metadata()["shape"]) == [1, 8, 8]


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("fedavg", ["before", "finished"]),
        ("fedbabu", ["finished"]),
        ("perfedmask", ["finished", "shared"]),
        ("splitmix", ["finished"]),
        ("heterofl", ["finished"]),
        ("perfedmask+heterofl", ["finished"]),
        ("perfedmask+splitmix", ["shared", "finished"]),
    ],
)
def test_what_a_run_tunes_at_its_end_is_exported_tuned(name, points, tmp_path):
    """To the bit: from the shared model of the best round, at that round's rate."""
    how = {"lr": 0.8, "lr_schedule": "exponential", "lr_decay": 0.5}
    more = {"method": how, "evaluate": {"points": points}, "results": {"models": True, "figures": False}}
    done = run(recipe(name, rounds=6, **more), tmp_path / "run")
    t, _ = best(done)
    assert t < 5
    assert t + 1 == max(done.rounds, key=lambda r: (r["validation"]["accuracy"], -r["round"]))["round"]
    file = tmp_path / "m.safetensors"
    for k in (0, 5):
        words = ("export", str(done.path), "--client", str(k), "--to", str(file))
        assert f"tuned at the end from the shared model of round {t + 1}: " in " ".join(ok(*words).stdout.split())
        want, found = load_file(done.path / "models" / f"client-{k:05d}.safetensors"), load_file(file)
        assert found.keys() == want.keys()
        assert all(torch.equal(found[key], want[key]) for key in want)
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["which"].startswith("tuned at the end")
    (done.path / "state" / "best.safetensors").unlink()
    assert re.search(r"the fine-tuned model \S*best\.safetensors is missing", " ".join(refused(*words).split()))


def test_who_exports_is_told_that_nothing_was_tuned(tmp_path):
    for name, which in (("fedbabu", 'end (evaluate.points has no "finished"): '), ("fedspa", "not tuned at the end: ")):
        done = run(recipe(name, rounds=1), tmp_path / name)
        k = done.rounds[0]["participants"][0]
        told = ok("export", str(done.path), "--client", str(k), "--to", str(tmp_path / "m.safetensors")).stdout
        assert which in " ".join(told.split())


def test_what_cannot_be_exported_says_why(tmp_path, monkeypatch):
    run(recipe("fedavg", rounds=1), tmp_path / "run")
    where = ("export", str(tmp_path / "run"))
    assert "client: 6 is not allowed; expected an int in [0, 5], a client of" in refused(
        *where, "--client", "6", "--to", "m.safetensors"
    )
    assert 'to: "m.pt" is not allowed; expected a path that ends with .safetensors or .onnx' in refused(
        *where, "--client", "0", "--to", "m.pt"
    )
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "needs ONNX, which is not installed: pip install 'sparsona[onnx]'" in refused(
        *where, "--client", "0", "--to", str(tmp_path / "m.onnx")
    )


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path, monkeypatch):
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(needed, reason=f"{needed} is not here: pip install 'sparsona[onnx]'")
    how = {"split": "rows", "budget": "layers"}
    done, device, fleet, client, mail = finished(tmp_path / "run", "pfedgate", model=CNN, method=how)
    monkeypatch.chdir(tmp_path)
    ok("export", str(done.path), "--client", "0", "--to", "seven.onnx")
    text = (Path(__file__).parents[2] / "docs" / "pfedgate.md").read_text()
    (example,) = re.findall(r"```python\n(import onnxruntime.*?)```", text, re.DOTALL)
    module = module_of(device, client, mail, fleet.local(0), 0)
    for n in (1, 5):
        x, _ = fleet.test(0).at(torch.arange(n))
        np.save("x.npy", x.contiguous().numpy())
        script = f"import numpy as np\nx = np.load('x.npy')\n{example}np.save('logits.npy', logits)\n"
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
        with torch.no_grad():
            assert np.allclose(np.load("logits.npy"), module(x).numpy(), atol=1e-4)


def test_who_never_took_part_is_exported_with_a_warning(tmp_path):
    """Its gate is untrained: the command says so, and writes it all the same."""
    done = run(recipe("pfedgate", rounds=1), tmp_path / "run")
    joined = sorted(done.rounds[0]["participants"])
    (absent, *_) = sorted(set(range(6)) - set(joined))
    words = ("-m", "sparsona", "export", str(done.path), "--to", str(tmp_path / "m.safetensors"), "--client")
    for k, told in ((absent, True), (joined[0], False)):
        called = subprocess.run(
            [sys.executable, *words, str(k)], check=True, timeout=120, capture_output=True, text=True
        )
        text = " ".join(called.stderr.split())
        assert (f"warning: client {k} took part in no round" in text) == told
        assert ("is untrained; export another client" in text) == told
        assert "parameters" in called.stdout
    nothing_kept = run(recipe("fedavg", rounds=1), tmp_path / "shared")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(6):
            export(nothing_kept, k, tmp_path / "m.safetensors")


@pytest.mark.parametrize("split", tiered(["flat", "rows"], short=["rows"]))
def test_files_are_smaller_than_the_dense_model_and_predict_alike(split, tmp_path):
    """Dropped values are in neither file, nor is anything about the machine that wrote it."""
    how = {"name": "digits-lenet"}
    done, device, fleet, client, mail = finished(tmp_path / "run", "pfedgate", model=how, method={"split": split})
    data, ctx = fleet.local(0), device.ctx(0, "personal", 0, 0)
    dense, gated = 4 * device.task.layout.params, device.method.gated(client.keep, ctx)
    x, _ = data.train.at(torch.arange(len(data)))  # for these the run chooses as the exported model has
    with torch.no_grad():
        gated.load(mail["server"]["theta"].values, client.gate, train=False)
        _, chosen = gated.weights(x)
    values = int(gated.blocks.sizes[chosen].sum()) + int(chosen.sum()) * (x[0].numel() + 5) + 10  # kept, gate, norm
    file = tmp_path / "m.safetensors"
    ok("export", str(done.path), "--client", "0", "--to", str(file))
    assert file.stat().st_size < min(dense, 4 * values + 5_000)
    for needed in ("onnx", "onnxscript"):
        pytest.importorskip(needed, reason=f"{needed} is not here: pip install 'sparsona[onnx]'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'sparsona[onnx]'")
    file = tmp_path / "m.onnx"
    ok("export", str(done.path), "--client", "0", "--to", str(file))
    assert file.stat().st_size < min(dense, 4 * values + 20_000)
    assert not re.search(rb"\.py|stack_trace", file.read_bytes())
    found = onnxruntime.InferenceSession(str(file)).run(["logits"], {"x": x.contiguous().numpy()})[0]
    want = device.method.personal(client, mail, data, ctx).logits(x)
    assert np.allclose(found, want.numpy(), atol=1e-5)


def test_newcomers_never_take_part(tmp_path):
    r = recipe("pfedgate", rounds=4, fleet={"per_round": 2, "hold_out": 0.34})
    new = newcomers(r)
    assert len(new) == 2
    done = run(r, tmp_path / "run")
    assert not {k for row in done.rounds for k in row["participants"]} & set(new)
    assert not {row["client"] for row in done.rows("clients")} & set(new)
    assert done.summary["newcomers"]["clients"] == 2
    assert done.summary["before"]["clients"] == 4


@pytest.mark.parametrize("name", ["pfedgate", "fedem"])
def test_what_a_newcomer_is_given_stays_as_it_is(name, tmp_path):
    """Only the gate, or the proportions, are fitted: the message is not written into."""
    done = run(recipe(name, rounds=1, fleet={"per_round": 2, "hold_out": 0.34}), tmp_path / "run")
    device, fleet = prepare(done.recipe)
    k = newcomers(done.recipe)[0]
    joined, mail = device.method.join(k, device.ctx(0, "join", k)), inbox(done, device, k)
    (part,) = mail["server"].values()
    before = part.values.clone()
    with arithmetic():
        client, _ = device.adapted(joined, mail, fleet.local(k), device.ctx(0, "adapt", k))
    assert torch.equal(part.values, before)
    field = "gate" if name == "pfedgate" else "mixture"
    assert not torch.equal(getattr(client, field), getattr(joined, field))
    assert torch.equal(getattr(client, field), getattr(value(done, device, k), field))  # as the run itself did


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("perfedmask", {"budget": 0.5}),
        ("splitmix", {"bases": 2}),
        ("perfedmask+splitmix", {"bases": 2, "budget": 0.5}),
        ("perfedmask+heterofl", {"width": 0.5, "budget": 0.5}),
        ("heterofl", {}),
    ],
)
def test_newcomers_have_no_part_in_what_is_tuned_at_the_end(name, how, tmp_path):
    """Neither in choosing the best round nor in the score; they adapt from what the server would send them."""
    points = {"points": ["finished", "shared"]}
    r = recipe(name, rounds=2, model=CNN, method=how, fleet={"per_round": 2, "hold_out": 0.34}, evaluate=points)
    done = run(dataclasses.replace(r, results=dataclasses.replace(r.results, models=True)), tmp_path / "run")
    new = newcomers(r)
    assert not {row["client"] for row in done.rows("clients")} & set(new)
    assert all(row["validation"]["clients"] == 4 for row in done.rounds)
    assert all(done.summary[point]["clients"] == 4 for point in ("finished", "unfinished", "shared"))
    assert done.summary["newcomers"]["clients"] == 2
    files = {int(f.stem[-5:]): load_file(f) for f in (done.path / "models").iterdir()}
    assert files.keys() == set(range(6)) - set(new)
    device, fleet = prepare(done.recipe)
    k = new[0]
    with arithmetic():
        mail = inbox(done, device, k)
        module = module_of(device, None, mail, fleet.local(k), k, new=True)
        joined = device.method.join(k, device.ctx(0, "join", k))
        raw = device.personal(joined, mail, fleet.local(k), 1, k)
    x, _ = fleet.test(k).at(torch.arange(4))
    before = raw.logits(x)
    assert not torch.allclose(module(x), before, atol=1e-3)  # it was tuned
    if "splitmix" in name:
        assert {key.split(".")[1] for key in files[min(files)]} == {"0", "1"}  # all bases of a tuned model


def test_newcomers_of_any_method_learn_as_fast_as_all_began():
    """However far the rate of the others has fallen, and here it has fallen to a millionth."""
    models = []
    for how in ({"lr_schedule": "exponential", "lr_decay": 1e-3}, {}):
        device, fleet = prepare(recipe("fedavg", method=how))
        mail = {"server": device.method.down(device.theta0, 0, device.ctx(2, "down"))}
        models.append(device.adapted(None, mail, fleet.local(0), device.ctx(2, "adapt", 0))[1].vectors()[0])
    assert torch.equal(*models)
    assert (models[0] - device.theta0).abs().max() > 0.01


def test_bad_shares_of_newcomers_are_refused():
    with pytest.raises(
        RecipeError, match=r"fleet\.hold_out: 0\.01 is not allowed; it holds out 0 of data\.clients = 6"
    ):
        recipe("fedavg", fleet={"hold_out": 0.01})
    with pytest.raises(
        RecipeError,
        match=r"fleet.per_round: 3 is not allowed; expected an int <= data.clients = 6 less 4 newcomers",
    ):
        recipe("fedavg", fleet={"hold_out": 0.67})
    with pytest.raises(
        RecipeError, match=r"fleet.hold_out: 0.5 is not allowed; expected 0, as the method has no server"
    ):
        recipe("dadpfl", fleet={"hold_out": 0.5})


def test_a_stranger_is_told_what_it_cannot_change(tmp_path):
    done = run(recipe("pfedgate", rounds=1, method={"keep": [0.5] * 6}), tmp_path / "run")
    _, fleet = prepare(done.recipe)
    file, part = tmp_path / "mine.npz", fleet.parts[0].train
    np.savez(file, x=fleet.dataset.x[part].numpy(), y=fleet.dataset.y[part].numpy())
    words = ("adapt", str(done.path), "--data", str(file))
    assert "method.keep is a list; set the newcomer's value with method.keep=..." in refused(*words)
    for change in ("model.name=digits-cnn", "method.name=fedavg"):
        assert refused(*words, change)
    with pytest.raises(RunError, match="run: the model and the name of the method are fixed for a newcomer"):
        adapt(done, file, overrides=["model.name=digits-cnn"])
    assert "accuracy" in ok(*words, "method.keep=0.3", "--json").stdout


def test_a_newcomer_has_all_metrics(tmp_path):
    done = run(recipe("fedavg", rounds=1, task={"metrics": ["macro_f1", "accuracy"]}), tmp_path / "run")
    np.savez(tmp_path / "new.npz", x=np.zeros((20, 8, 8), np.uint8), y=np.arange(20) % 10)
    line, *_ = sparsona.adapt(done, tmp_path / "new.npz").render(80)
    assert re.match(
        r"macro F1 [\d.]+%, accuracy [\d.]+% on its test samples, adapted on \d+ training samples", str(line)
    )


def test_a_stranger_adapts(tmp_path):
    done = run(recipe("pfedgate", rounds=1), tmp_path / "run")
    _, fleet = prepare(done.recipe)
    rows = fleet.parts[0].train
    file, model = tmp_path / "mine.npz", tmp_path / "mine.safetensors"
    np.savez(file, x=fleet.dataset.x[rows].numpy(), y=fleet.dataset.y[rows].numpy())
    words = ("adapt", str(done.path), "--data", str(file), "--to", str(model), "--json", "fleet.adapt_epochs=2")
    told = json.loads(ok(*words).stdout)
    assert told["client"] == 6
    assert 0 <= told["accuracy"] <= 1
    assert told["train_samples"] < len(rows)
    assert load_file(model)
    np.savez(file, x=np.zeros((4, 3)), y=np.zeros(4))
    assert "mine.npz: x is float64 of shape [4, 3]; expected torch.uint8 of [n, 8, 8, 1]" in refused(*words[:4])
    np.savez(file, x=fleet.dataset.x[:3].numpy(), y=np.array([0, 10, 1]))
    assert "mine.npz: y of sample 1 is 10; expected a class in [0, 9]" in refused(*words[:4])
    file.write_bytes(b"no archive")
    assert "mine.npz: cannot be read as .npz with x and y" in refused(*words[:4])


def test_a_stranger_s_file_is_read_as_every_other_is(tmp_path):
    """Pictures need no channel axis, numbers may be wide, and what no model can learn from is refused."""
    done = run(recipe("fedavg", rounds=1), tmp_path / "run")
    _, fleet = prepare(done.recipe)
    x, y, file = fleet.dataset.x[:40].numpy(), fleet.dataset.y[:40].numpy(), tmp_path / "mine.npz"
    assert x.shape == (40, 8, 8, 1)
    np.savez(file, x=x, y=y)
    want = stranger(file, fleet, done.recipe)
    np.savez(file, x=x[..., 0], y=y.astype(np.float64))
    for mine, theirs in zip(stranger(file, fleet, done.recipe), want, strict=True):
        for a, b in zip(mine.at(torch.arange(len(mine))), theirs.at(torch.arange(len(theirs))), strict=True):
            assert torch.equal(a, b)
    for target, dtype in (("class", np.float64), ("tokens", np.int64)):
        wide = np.arange(80).reshape(40, 2)
        like = dataclasses.replace(
            fleet.dataset,
            x=torch.zeros(1, 2, dtype=torch.float32 if dtype is np.float64 else torch.int32),
            y=fleet.dataset.y[:1] if target == "class" else torch.zeros(1, 2, dtype=torch.int64),
            vocabulary=0 if target == "class" else 80,
            class_names=fleet.dataset.class_names if target == "class" else (),
            target=target,
            prepare=Prepare(),
        )
        np.savez(file, x=wide.astype(dtype), y=y if target == "class" else wide)
        train, _, _ = stranger(file, dataclasses.replace(fleet, dataset=like), done.recipe)
        got, _ = train.at(torch.tensor([0]))
        assert got[0].tolist() == wide[train.index[0]].tolist()
        if target == "class":
            np.savez(file, x=np.where(wide == 7, np.nan, wide), y=y)
            with pytest.raises(RunError, match=r"mine\.npz: x has NaN or Inf in sample 3; expected finite numbers"):
                stranger(file, dataclasses.replace(fleet, dataset=like), done.recipe)
            np.savez(file, x=wide[:, :1].astype(dtype), y=y)
            table = dataclasses.replace(fleet, dataset=dataclasses.replace(like, encoding=Encoding({"a": Scale(0, 1)})))
            with pytest.raises(
                RunError,
                match=r"mine\.npz: x is float64 of shape \[40, 1\]; "
                r"expected the standardised and encoded columns, torch\.float32 of \[n, 2\], as in ",
            ):
                stranger(file, table, done.recipe)


def strange(path, fleet, n=40):
    """A file of samples that no client of a fleet of its own need have."""
    np.savez(path, x=fleet.dataset.x[:n].numpy(), y=fleet.dataset.y[:n].numpy())
    return path


@pytest.mark.parametrize("name", ["perfedmask", "perfedmask+heterofl", "perfedmask+splitmix"])
def test_a_stranger_to_layer_masks_tunes_the_whole_model(name, tmp_path):
    """It has no mask and needs none: it is sent everything, and what is written is tuned everywhere, the head, too."""
    done = run(recipe(name, rounds=1, model=CNN, evaluate={"points": ["finished"]}), tmp_path / "run")
    device, fleet = prepare(done.recipe)
    file, model = strange(tmp_path / "mine.npz", fleet), tmp_path / "mine.safetensors"
    told = ok("adapt", str(done.path), "--data", str(file), "--to", str(model), "fleet.adapt_epochs=8").stdout
    assert "adapted as a newcomer's" in " ".join(told.split())
    mail, layout = inbox(done, device, 6), device.task.layout
    assert mail["server"]["layers"].mask.all()
    sent = device.method.personal(None, mail, fleet.local(0), device.ctx(0, "personal", 0, 6))
    shared = device.method.shared(
        loads((done.path / "state" / "server.safetensors").read_bytes(), types_of(device.method))
    )
    rows = sent.view(-1, layout.dim)
    assert torch.equal(sent, shared)
    tuned = load_file(model)
    for i, row in enumerate(rows):
        for key, tensor in layout.unflatten(row).items():
            assert not torch.equal(tuned[f"models.{i}.{key}" if len(rows) > 1 else key], tensor)


def test_strangers_are_not_told_of_our_exceptions(tmp_path):
    done = run(recipe("heterofl", rounds=1, method={"keep": [0.5] * 6}), tmp_path / "run")
    words = ("adapt", str(done.path), "--data", str(strange(tmp_path / "mine.npz", prepare(done.recipe)[1])))
    assert refused(*words).endswith(
        "heterofl cannot adapt client 6, which is not among the 6 clients of the run; "
        "method.keep is a list; set the newcomer's value with method.keep=..."
    )


@pytest.mark.parametrize(
    ("name", "shares", "least"),
    [("fedavg", {}, 2), ("pfedgate", {}, 3), ("pfedgate", {"train_share": 1, "test_share": 9}, 15)],
)
def test_too_few_samples_to_adapt_with_are_refused(name, shares, least, tmp_path):
    """Gates make no step with a single sample; which n leaves two to train with depends on the shares."""
    done = run(recipe(name, rounds=1), tmp_path / "run")
    _, fleet = prepare(done.recipe)
    file = tmp_path / "mine.npz"
    words = ("adapt", str(done.path), "--data", str(file), *(f"data.{key}={value}" for key, value in shares.items()))
    for n in (0, 1, least - 1):
        strange(file, fleet, n)
        assert f"{n} samples are too few; expected at least {least}, " in refused(*words)
    strange(file, fleet, least)
    assert "accuracy" in ok(*words).stdout


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            "rounds=9",
            "rounds: cannot change for a newcomer; allowed: method.FIELD, fleet.adapt_epochs, data.train_s",
        ),
        ("seed=3", "seed: cannot change for a newcomer"),
        ("fleet.per_round=2", "fleet.per_round: cannot change for a newcomer"),
        (
            "method.epochs=3",
            "method.epochs: has no effect on a newcomer; set fleet.adapt_epochs instead",
        ),
        ("method.finish_epochs=3", "method.finish_epochs: has no effect"),
        ("fleet.adapt_epoch=3", "did you mean"),
    ],
)
def test_changes_that_do_nothing_for_a_stranger_are_refused(change, why, tmp_path):
    done = run(recipe("fedavg", rounds=1), tmp_path / "run")
    file = strange(tmp_path / "mine.npz", prepare(done.recipe)[1])
    assert why in refused("adapt", str(done.path), "--data", str(file), change)
