"""Methods of users: by name in recipes, as objects in Python, on every engine; reading a run folder imports none."""

import dataclasses
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import sparsona
from command import call, ok, refused
from engines.test_engines import files
from small import recipe
from sparsona.experiment.objects import NamedMethod, object_name
from sparsona.experiment.recipe import Recipe, RecipeError, check, tables
from sparsona.experiment.results import Run, RunError
from sparsona.methods.fedavg import FedAvg

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_method.py"
NAME = "own_method:HalfWay"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the example's method in it; nothing of it stays in this process."""
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(EXAMPLE.parent))])
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def own(rounds: int = 2, **more: Any) -> Recipe:
    return recipe(NAME, rounds=rounds, **more)


def toml(r: Recipe, file: str = "mine.toml") -> str:
    Path(file).write_text(tomli_w.dumps(tables(r)))
    return file


def module(name: str, text: str) -> None:
    Path(f"{name}.py").write_text(text)


HEAD = "from dataclasses import dataclass\nfrom sparsona.methods.fedavg import FedAvg\n"


# -- by name -----------------------------------------------------------------------------------------------------------


def test_from_the_command_line_to_the_comparison() -> None:
    file = toml(own())
    ok("run", file, "method.own=0.25", "--out", "runs/a")
    ok("run", file, "method.own=1.0", "--out", "runs/b")
    saved = Run("runs/a").recipe
    assert isinstance(saved.method, NamedMethod)
    assert tables(saved)["method"] == tables(own(method={"own": 0.25}))["method"]
    ok("compare", "runs/a", "runs/b", "--out", "c")
    assert json.loads(ok("compare", "runs/a", "--json", "--out", "c").output)["runs"][0]["method"] == NAME


def test_its_options_are_shown_and_checked() -> None:
    shown = ok("show", NAME).output
    assert "share of its own model that a client predicts with" in shown
    assert "A method of your own: FedAvg whose clients predict with a mix" in shown
    options = json.loads(ok("show", NAME, "--json").output)
    assert options["fields"]["own"] == 0.5
    assert options["allowed"]["own"] == "float in [0, 1]"
    file = toml(own())
    assert refused("run", file, "method.own=2") == "method.own: 2 is not allowed; expected a float in [0, 1]"
    assert refused("run", file, "method.owm=1") == 'method.owm: no such field; did you mean "own"?'
    assert refused("show", "own_method:HalfWai") == (
        'method.name: "HalfWai" not found in module "own_method"; did you mean "HalfWay"?'
    )


def test_a_message_that_is_none_is_one_line_and_names_stay_as_they_are() -> None:
    module(
        "dicts", HEAD + "@dataclass(frozen=True)\nclass boom(FedAvg):\n    def down(self, server, k, ctx): return {}\n"
    )
    assert refused("run", toml(recipe()), "method.name=dicts:boom") == "boom.down returned dict; expected a Message"
    assert 'method.name: "boom:" not found in module "dicts"' in refused(
        "run", toml(recipe()), "method.name=dicts:boom:"
    )  # no emoji


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ("", "no_such_module:Mine", 'module "no_such_module" cannot be imported: it is neither installed nor in the '),
        ("import no_such_package", "bad:Mine", 'module "bad" cannot be imported: ModuleNotFoundError: No module named'),
        ("1 / 0", "bad:Mine", 'module "bad" cannot be imported: ZeroDivisionError: division by zero'),
        ("raise SystemExit('two\\nlines')", "bad:Mine", 'module "bad" cannot be imported: SystemExit: two lines'),
        ("def broken(:", "bad:Mine", 'module "bad" cannot be imported: SyntaxError:'),
        ("x = 1", "bad:Mine", '"Mine" not found in module "bad"'),
        ("x = 1", "bad:", '"" not found in module "bad"'),
        ("Mine = 3", "bad:Mine", '"bad:Mine" is of type int; expected a class'),
        (
            "class Mine: pass",
            "bad:Mine",
            "Mine is not a frozen dataclass; decorate it with @dataclass(frozen=True, ",
        ),
        (HEAD + "@dataclass\nclass Mine: lr: float = 0.1", "bad:Mine", "Mine is not a frozen dataclass"),
        (
            "from sparsona.methods.fedavg import FedAvg\nclass Mine(FedAvg): own: float = 0.1",
            "bad:Mine",
            "Mine is not a dataclass, so own is not a field; decorate it with @dataclass(frozen=True, ",
        ),
        (
            HEAD + "@dataclass(frozen=True)\nclass Mine: pass",
            "bad:Mine",
            "Mine lacks hooks: add start, down, read, merge for a",
        ),
        (
            HEAD + "@dataclass(frozen=True, kw_only=True)\nclass Mine(FedAvg): name: str = ''",
            "bad:Mine",
            'Mine has a field "name", which recipes reserve; rename it',
        ),
        (
            HEAD + "@dataclass(frozen=True, kw_only=True)\nclass Mine(FedAvg): x: 'Nowhere' = 1",
            "bad:Mine",
            "the types of its fields cannot be checked: name 'Nowhere' is not defined",
        ),
        (
            HEAD + "class Odd: pass\n@dataclass(frozen=True, kw_only=True)\nclass Mine(FedAvg): x: Odd = None",
            "bad:Mine",
            "the types of its fields cannot be checked: ",
        ),
    ],
)
def test_what_is_wrong_with_a_plug_in_is_one_line(text: str, name: str, error: str) -> None:
    module("bad", text)
    file = toml(recipe())
    for command in (("run", file, f"method.name={name}"), ("show", name)):
        line = refused(*command)
        assert line.startswith("method.name: "), line
        assert error in line, line
    assert not Path("runs").exists()


HOOK = HEAD + "@dataclass(frozen=True, kw_only=True)\nclass Mine(FedAvg):\n    def "


@pytest.mark.parametrize(
    ("hook", "line"),
    [
        ("merge(self, server, inbox, ctx): raise RuntimeError('boo\\nhoo')", "5: merge: RuntimeError: boo hoo"),
        (
            "read(self, server, k, message, ctx): return message['nope']",
            "5: read: KeyError: \"message: no part 'nope'; the parts are theta, samples\"",
        ),
        ("start(self, clients, ctx): return 1 // 0", "5: start: ZeroDivisionError: integer division or modulo by zero"),
        ("__post_init__(self): raise TypeError('odd')", "5: __post_init__: TypeError: odd"),
        ("merge(self, server, inbox, ctx): pass", "Mine.merge returned None; expected the server's new value"),
        ("local(self, client, inbox, data, ctx): return 3", "Mine.local returned int; expected a tuple (client, mess"),
    ],
)
def test_what_fails_in_a_hook_is_one_line(hook: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module("hooks", HOOK + hook + "\n")
    command = ("run", toml(recipe(evaluate={"points": ["before"]})), "method.name=hooks:Mine")
    done = call(*command)
    assert done.exit_code in (1, 2)
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    assert line in done.stderr
    if line[0].isdigit():  # with a place in the user's file, and the traceback if that is asked for
        assert f"error: {Path('hooks.py').resolve()}:{line}" in done.stderr
        monkeypatch.setenv("SPARSONA_DEBUG", "1")
        with pytest.raises(Exception, match=re.escape(line.rpartition(": ")[2].split()[0])):
            call(*command)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "method.name=own_method.HalfWay",
            'method.name: "own_method.HalfWay" not found; did you mean "own_method:Half',
        ),
        ("method.name=./lib/mine.py:X", '"./lib/mine.py:X" names a file; expected "lib.mine:X"'),
        ("method.name=own_method.py:HalfWay", '"own_method.py:HalfWay" names a file; expected "own_method:HalfWay"'),
        (
            "model.name=nets.small",
            'model.name: "nets.small" not found; did you mean "nets:small", a Class in module nets',
        ),
        (
            "fleet.sampler=draw.fair",
            'fleet.sampler: "draw.fair" not found; did you mean "draw:fair", a function in mod',
        ),
    ],
)
def test_a_plug_in_s_name_that_is_nearly_right(override: str, line: str) -> None:
    assert line in refused("run", toml(recipe()), override)


def test_a_recipe_made_in_python_has_its_name() -> None:
    sys.path.append(str(Path.cwd()))
    HalfWay = importlib.import_module("own_method").HalfWay
    made = dataclasses.replace(recipe(), method=HalfWay(own=0.25))
    assert tables(made)["method"]["name"] == NAME
    assert check(tables(made)) == made
    assert sparsona.run(made, "a").rounds == sparsona.run(recipe(), "b", method=HalfWay(own=0.25)).rounds
    assert files(Path("a")) == files(Path("b"))


def test_sweeps_tables_and_plans() -> None:
    file = toml(own())
    swept = sparsona.sweep(file, ["method.own=0.0,1.0", "results.figures=false"], out="s")
    assert [run.recipe.method.fields["own"] for run in swept] == [0.0, 1.0]
    again = sparsona.sweep(file, ["method.own=0.0,1.0", "results.figures=false"], out="s", on_run=None)
    assert again.table == swept.table
    assert len(sparsona.resume_all("s")) == 2
    plan = sparsona.load(file)
    plan.run("p")
    assert plan.resume("p").runs == (Run("p"),)


def test_a_table_of_a_paper() -> None:
    toml(own())
    Path("table.toml").write_text(
        'source = "mine"\ntitle = "own"\nseeds = [1]\n'
        '[[columns]]\nname = "digits"\nrecipe = "mine.toml"\n[[rows]]\nname = "half"\nprinted = [50.0]\n'
    )
    ok("reproduce", "table.toml", "--out", "t")
    assert "1 of 1 runs are finished" in ok("reproduce", "table.toml", "--out", "t", "--dry-run").output


def test_models_are_exported_and_newcomers_adapt() -> None:
    run = sparsona.run(own(data={"clients": 6}), "r")
    model = sparsona.export(run, 0, "m.safetensors")
    assert model.records["method"] == NAME
    rng = np.random.default_rng(0)
    np.savez("x.npz", x=rng.integers(0, 16, (20, 8, 8, 1)).astype(np.uint8), y=np.arange(20) % 10)
    assert sparsona.adapt("r", "x.npz", overrides=["method.own=0.25"]).train_samples > 0
    with pytest.raises(RecipeError, match=r"method\.own: no such field"):
        sparsona.adapt("r", "x.npz", overrides=["method.name=fedavg"])


# -- engines -----------------------------------------------------------------------------------------------------------


def test_the_pool_equals_local_to_the_bit() -> None:
    sparsona.run(own(), "local")
    sparsona.run(own(engine="pool"), "pool")
    assert files(Path("pool")) == files(Path("local"))
    assert (Path("local") / "state" / "client-00000.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_ray_equals_local_to_the_bit() -> None:
    sparsona.run(own(), "local")
    sparsona.run(own(engine="ray"), "ray")
    assert files(Path("ray")) == files(Path("local"))


def test_a_fleet_equals_local_to_the_bit_if_it_allows_plug_ins(here: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from fleet.test_fleet import files as fleet_files
    from fleet.world import World
    from sparsona.fleet import FleetError
    from sparsona.fleet.data import NodeData

    sparsona.run(own(), "local")
    (here / "w").mkdir()
    (here / "v").mkdir()
    world = World(here / "w", 6, NodeData(plugins=True))
    world.run(own(), here / "fleet")
    assert fleet_files(here / "fleet") | world.values(here / "fleet") == fleet_files(here / "local")
    with pytest.raises(FleetError, match=r'method.name: "own_method:HalfWay" is a plug-in.*--allow-plugins'):
        World(here / "v", 6).run(own(), here / "refused")


@pytest.mark.parametrize("engine", ["local", pytest.param("pool", marks=pytest.mark.slow)])
def test_an_interrupted_run_is_resumed_to_the_same_bits(engine: str) -> None:
    sparsona.run(own(3, engine=engine), "whole")

    def stop(step: sparsona.Progress) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sparsona.run(own(3, engine=engine), "cut", on_round=stop)
    assert not Run("cut").finished
    ok("resume", "cut")
    assert files(Path("cut")) == files(Path("whole"))


@pytest.mark.slow
def test_killed_in_a_process_of_its_own_and_resumed_from_another_folder(here: Path) -> None:
    toml(own(3))
    sparsona.run(own(3), "whole")
    kill = (
        "import os, sparsona\n"
        "plan = sparsona.load('mine.toml')\n"
        "sparsona.run(plan['small'], 'cut', on_round=lambda s: os._exit(9) if s.round == 2 else None)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", kill], check=False, timeout=60)
    assert done.returncode == 9
    Path("elsewhere").mkdir()
    command = [sys.executable, "-P", "-m", "sparsona", "resume", str(here / "cut")]
    away = subprocess.run(command, cwd="elsewhere", capture_output=True, text=True, check=False, timeout=60)
    assert away.returncode == 2
    assert away.stderr == (
        'error: method.name: module "own_method" cannot be imported: '
        "it is neither installed nor in the current folder\n"
    )
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    assert files(here / "cut") == files(here / "whole")


# -- reading imports nothing -------------------------------------------------------------------------------------------

SPY = "import pathlib\npathlib.Path('imported').touch()\nfrom own_method import Client, HalfWay\n"


def test_reading_and_comparing_import_nothing() -> None:
    module("spy", SPY)
    r = recipe("spy:HalfWay", rounds=2)
    sparsona.run(r, "a")
    everywhere = tables(recipe("fedspa"))  # plug-ins in every section, and in a method of ours
    everywhere["method"] |= {"search": "spy:f", "lr_schedule": "spy:f"}
    everywhere["model"]["name"] = everywhere["data"]["source"] = everywhere["fleet"]["sampler"] = "spy:f"
    everywhere["task"] |= {"loss": "spy:f", "metrics": ["spy:f"]}
    Path("b").mkdir()
    Path("b/recipe.toml").write_text(tomli_w.dumps(everywhere))
    sparsona.sweep(toml(r), ["method.own=0.0,1.0", "results.figures=false"], out="s")
    Path("imported").unlink()
    read = (
        "import sys, sparsona\n"
        "from sparsona.__main__ import main\n"
        "from sparsona.experiment.recipe import tables\n"
        "runs = [sparsona.Run(p) for p in 'ab']\n"
        "print([tables(run.recipe)['method']['name'] for run in runs], runs[0].recipe.method.fields['own'])\n"
        "sparsona.compare(['a'], 'c'); sparsona.compare(['s'], 'd')\n"
        "sparsona.show('s').json(); list(sparsona.show('b').render(80))\n"
        "sparsona.list_runs('.').json()\n"
        "assert not {'', sys.argv[1]} & set(sys.path)\n"
        "sys.argv = ['sparsona', 'show', 'a']\n"
        "main()\n"
    )
    command = [sys.executable, "-P", "-c", read, str(Path.cwd())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['spy:HalfWay', 'fedspa'] 0.5\n")
    assert not Path("imported").exists()


def test_a_plug_in_that_is_gone_is_not_damage() -> None:
    sparsona.run(own(), "r")
    Path("own_method.py").unlink()
    del sys.modules["own_method"]
    assert json.loads(ok("show", "r", "--json").output)["runs"][0]["finished"]
    assert Run("r").recipe.method.name == NAME
    line = refused("export", "r", "--client", "0", "--to", "m.safetensors")
    assert line.startswith('method.name: module "own_method" cannot be imported')
    assert "neither installed" in line
    assert "damaged" not in line


# -- as objects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    rounds: int


def counting(**fields: Any) -> Any:
    """A method that no other process can import, as those of notebooks and scripts."""

    @dataclass(frozen=True, kw_only=True)
    class Counting(FedAvg):
        scale: float = 1.0

        def local(self, client: Any, inbox: Any, data: Any, ctx: Any) -> Any:
            _, message, theta = super().local(None, inbox, data, ctx)
            return Kept(1 if client is None else client.rounds + 1), message, theta

    return Counting(**fields)


def test_an_object_runs_here_with_and_without_a_folder() -> None:
    kept = sparsona.run(recipe(), method=counting(lr=0.1, batch=16))
    written = sparsona.run(recipe(), "r", method=counting(lr=0.1, batch=16))
    plain = sparsona.run(recipe("fedavg"))
    assert kept.rounds == written.rounds == plain.rounds
    assert tables(written.recipe) == tables(kept.recipe)
    assert tables(written.recipe)["method"]["name"] == "<Counting>"
    assert tables(written.recipe)["method"]["scale"] == 1.0
    ok("compare", "r", "--out", "c")
    assert sparsona.export("r", 0, "m.safetensors", method=counting(lr=0.1, batch=16)).records["method"] == "<Counting>"
    with pytest.raises(
        RecipeError,
        match=r'method\.name: "<Counting>" is a Python object; pass it again, '
        r"for example sparsona\.resume\(out, method=",
    ):
        sparsona.export("r", 0, "m.safetensors")


def test_other_engines_need_a_name() -> None:
    for engine in ("pool", "ray"):
        with pytest.raises(
            RecipeError, match=rf'engine.name: worker processes of "{engine}" cannot import the method '
        ):
            sparsona.run(recipe(engine=engine), "r", method=counting())
    assert not Path("r").exists()


def test_an_object_is_given_again_to_resume() -> None:
    def stop(step: sparsona.Progress) -> None:
        raise KeyboardInterrupt

    sparsona.run(recipe(), "whole", method=counting(scale=2.0))
    with pytest.raises(KeyboardInterrupt):
        sparsona.run(recipe(), "cut", method=counting(scale=2.0), on_round=stop)
    assert "sparsona.resume(out, method=...)" in refused("resume", "cut")
    with pytest.raises(RunError, match=r"another method: method.scale is 2.0 there, but 3.0 here"):
        sparsona.resume("cut", method=counting(scale=3.0))
    sparsona.resume("cut", method=counting(scale=2.0))
    assert files(Path("cut")) == files(Path("whole"))


def test_a_longer_run_needs_the_same_method() -> None:
    sparsona.run(recipe(), "three", method=FedAvg(lr=0.1))
    with pytest.raises(RunError, match=r"another method: method.lr is 0.1 there, but 0.2 here"):
        sparsona.resume("three", rounds=5, method=FedAvg(lr=0.2))


def test_what_is_not_a_method_is_refused() -> None:
    class Loose:
        pass

    with pytest.raises(RecipeError, match="method: Loose is not a frozen dataclass"):
        sparsona.run(recipe(), method=Loose())
    with pytest.raises(
        RecipeError, match="quickstart: several variants, shared, tuned, personal, alone; choose one, for"
    ):
        sparsona.run("quickstart", method=counting())
    toml(recipe(rounds=1), "one.toml")
    assert len(sparsona.run("one.toml", method=counting()).rounds) == 1


def test_names_of_objects() -> None:
    assert object_name(FedAvg) == "sparsona.methods.fedavg:FedAvg"
    assert object_name(type(counting())) == "<Counting>"
    assert object_name(lambda: 0) == "<lambda>"
    assert object_name(3) == "<int>"


def test_newcomers_need_a_way_to_adapt() -> None:
    module(
        "bare",
        "from dataclasses import dataclass\nfrom own_method import HalfWay\n@dataclass(frozen=True)\nclass Bare:\n"
        "    join, local, personal = HalfWay.join, HalfWay.local, HalfWay.personal\n"
        "    start, down, read, merge = HalfWay.start, HalfWay.down, HalfWay.read, HalfWay.merge\n",
    )
    raw = tables(recipe()) | {"method": {"name": "bare:Bare"}}
    raw["fleet"] = {"hold_out": 0.5}
    lacking = r"fleet\.hold_out: 0\.5 is not allowed: Bare cannot adapt newcomers; add the hook"
    with pytest.raises(RecipeError, match=lacking):
        check(raw)
