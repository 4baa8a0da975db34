"""Sparsona: one small, personal model per device.

>>> import sparsona
>>> plan = sparsona.load("quickstart", ["rounds=5"])
>>> run = sparsona.run(plan["personal"], out="runs/mine")
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsona import testing
    from sparsona.api.catalogue import check, list_methods, list_models, list_recipes, show, topology
    from sparsona.api.catalogue import data as show_data
    from sparsona.api.comparison import ComparedRuns, compare
    from sparsona.api.dry_run import DryRun
    from sparsona.api.fleet import FleetRun
    from sparsona.api.fleet import make_keys as fleet_keys
    from sparsona.api.fleet import node as fleet_node
    from sparsona.api.fleet import plan_run as plan_fleet_run
    from sparsona.api.fleet import plan_trial as plan_fleet_trial
    from sparsona.api.fleet import run as fleet_run
    from sparsona.api.fleet import serve as fleet_server
    from sparsona.api.fleet import status as fleet_status
    from sparsona.api.fleet import trial as fleet_trial
    from sparsona.api.layer_masks import masks, measure_budgets
    from sparsona.api.models import AdaptedModel, ExportedModel, adapt, export
    from sparsona.api.recipes import check_recipe
    from sparsona.api.reproduction import list_tables, plan_reproduction, reproduce
    from sparsona.api.run_list import RunInfo, RunList, list_runs
    from sparsona.api.runs import Plan, RunSet, RunStart, load, resume, resume_all, run
    from sparsona.api.sweeps import plan_sweep, sweep
    from sparsona.experiment.checking import RecipeError
    from sparsona.experiment.loop import Progress
    from sparsona.experiment.recipe import Recipe
    from sparsona.experiment.results import Run, RunError
    from sparsona.methods import METHODS
    from sparsona.models import MODELS
    from sparsona.reports.costs import DeviceModel

try:
    __version__ = version("sparsona")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

__all__ = [
    "METHODS",
    "MODELS",
    "AdaptedModel",
    "ComparedRuns",
    "DeviceModel",
    "DryRun",
    "ExportedModel",
    "FleetRun",
    "Plan",
    "Progress",
    "Recipe",
    "RecipeError",
    "Run",
    "RunError",
    "RunInfo",
    "RunList",
    "RunSet",
    "RunStart",
    "__version__",
    "adapt",
    "check",
    "check_recipe",
    "compare",
    "export",
    "fleet_keys",
    "fleet_node",
    "fleet_run",
    "fleet_server",
    "fleet_status",
    "fleet_trial",
    "list_methods",
    "list_models",
    "list_recipes",
    "list_runs",
    "list_tables",
    "load",
    "masks",
    "measure_budgets",
    "plan_fleet_run",
    "plan_fleet_trial",
    "plan_reproduction",
    "plan_sweep",
    "reproduce",
    "resume",
    "resume_all",
    "run",
    "show",
    "show_data",
    "sweep",
    "testing",
    "topology",
]

# loaded when first used, so that a worker process or a look at one module does not import everything
_HOMES = {
    "METHODS": "sparsona.methods",
    "MODELS": "sparsona.models",
    "AdaptedModel": "sparsona.api.models",
    "ComparedRuns": "sparsona.api.comparison",
    "DeviceModel": "sparsona.reports.costs",
    "DryRun": "sparsona.api.dry_run",
    "ExportedModel": "sparsona.api.models",
    "FleetRun": "sparsona.api.fleet",
    "Plan": "sparsona.api.runs",
    "Progress": "sparsona.experiment.loop",
    "Recipe": "sparsona.experiment.recipe",
    "RecipeError": "sparsona.experiment.checking",
    "Run": "sparsona.experiment.results",
    "RunError": "sparsona.experiment.results",
    "RunInfo": "sparsona.api.run_list",
    "RunList": "sparsona.api.run_list",
    "RunSet": "sparsona.api.runs",
    "RunStart": "sparsona.api.runs",
    "adapt": "sparsona.api.models",
    "check": "sparsona.api.catalogue",
    "check_recipe": "sparsona.api.recipes",
    "compare": "sparsona.api.comparison",
    "export": "sparsona.api.models",
    "fleet_keys": "sparsona.api.fleet:make_keys",
    "fleet_node": "sparsona.api.fleet:node",
    "fleet_run": "sparsona.api.fleet:run",
    "fleet_server": "sparsona.api.fleet:serve",
    "fleet_status": "sparsona.api.fleet:status",
    "fleet_trial": "sparsona.api.fleet:trial",
    "list_methods": "sparsona.api.catalogue",
    "list_models": "sparsona.api.catalogue",
    "list_recipes": "sparsona.api.catalogue",
    "list_runs": "sparsona.api.run_list",
    "list_tables": "sparsona.api.reproduction",
    "load": "sparsona.api.runs",
    "masks": "sparsona.api.layer_masks",
    "measure_budgets": "sparsona.api.layer_masks",
    "plan_fleet_run": "sparsona.api.fleet:plan_run",
    "plan_fleet_trial": "sparsona.api.fleet:plan_trial",
    "plan_reproduction": "sparsona.api.reproduction",
    "plan_sweep": "sparsona.api.sweeps",
    "reproduce": "sparsona.api.reproduction",
    "resume": "sparsona.api.runs",
    "resume_all": "sparsona.api.runs",
    "run": "sparsona.api.runs",
    "show": "sparsona.api.catalogue",
    "show_data": "sparsona.api.catalogue:data",
    "sweep": "sparsona.api.sweeps",
    "topology": "sparsona.api.catalogue",
}


def __getattr__(name: str) -> object:
    if name == "testing":  # for sparsona.testing.check_method(...)
        return importlib.import_module("sparsona.testing")
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsona' has no attribute {name!r}")
    module, _, original = _HOMES[name].partition(":")
    value: object = getattr(importlib.import_module(module), original or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
