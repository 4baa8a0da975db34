"""Which cases of a test stay in the short tier (``make test``); the others run in the long one (``make test-all``)."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

REPRESENTATIVES = ("fedavg", "ditto", "fedspa", "pfedgate", "fedpse", "perfedmask", "dadpfl", "fedem")
"""Methods that between them use every path of the engines: star and peers, states, masks, votes, functions."""


def tiered(cases: Iterable[Any], short: Collection[Any] = REPRESENTATIVES) -> list[Any]:
    """Parameters of a test, of which those whose (first) value is not in ``short`` are slow."""
    result = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        result.append(pytest.param(*values, marks=() if values[0] in short else pytest.mark.slow))
    return result


LONG = (
    "tests/api/test_comparison_html.py::test_names_of_folders_are_escaped",
    "tests/api/test_front_door.py::test_a_plan_calls_back*",
    "tests/cli/test_cli.py::test_a_machine_that_shuts_down*",
    "tests/cli/test_cli.py::test_the_quickstart_from_run_to_comparison",
    "tests/core/test_topology.py::test_delay_of_the_smallest_id_variant*",
    "tests/core/test_wire.py::test_mutated_messages_are_refused_or_read*",
    "tests/core/test_wire.py::test_mutated_messages_stay_within_memory",
    "tests/data/test_real.py::test_cifar*",
    "tests/data/test_real.py::test_the_fleet_of_da_dpfl",
    "tests/data/test_real.py::test_the_fleet_of_fedspa",
    "tests/engines/test_engines.py::test_dropout_and_batch_norm_are_repeatable_too",
    "tests/engines/test_engines.py::test_pool_equals_local_to_the_bit[[]ditto-2]",
    "tests/engines/test_engines.py::test_pool_equals_local_to_the_bit[[]fedspa-2]",
    "tests/engines/test_engines.py::test_pool_equals_local_to_the_bit[[]pfedgate-2]",
    "tests/experiment/test_export.py::test_files_are_smaller*",
    "tests/experiment/test_export.py::test_who_never_took_part*",
    "tests/experiment/test_own_methods.py::test_killed_in_a_process_of_its_own*",
    "tests/experiment/test_reproduce.py::test_a_table_from_command_to_cells_and_on",
    "tests/experiment/test_reproduce.py::test_every_table_that_comes_with_us_can_be_run*",
    "tests/experiment/test_reproduce.py::test_killed_half_way_it_goes_on",
    "tests/experiment/test_resume.py::test_full_disk_in_a_run_keeps_the_last_checkpoint",
    "tests/experiment/test_resume.py::test_two_processes_on_one_run",
    "tests/experiment/test_resume.py::test_votes_and_pruning_survive_an_interruption",
    "tests/experiment/test_sampling.py::test_worker_processes_draw_the_same*",
    "tests/experiment/test_sweep.py::test_a_plan_killed_while_it_was_extended_goes_on",
    "tests/experiment/test_sweep.py::test_a_sweep_is_extended_by_values_seeds_and_variants",
    "tests/experiment/test_sweep.py::test_an_interrupted_run_goes_on_from_its_checkpoint",
    "tests/experiment/test_sweep.py::test_sweeps_are_compared_by_their_means",
    "tests/experiment/test_task_config.py::test_own_loss_and_metric_on_every_engine[[]pool]",
    "tests/fleet/test_keys.py::test_a_node_that_is_told_to_end_clears_away",
    "tests/fleet/test_trouble.py::test_a_server_that_died_goes_on_from_an_older_checkpoint*",
    "tests/fleet/test_trouble.py::test_those_who_wait_the_longest_are_asked_first",
    "tests/methods/dadpfl/test_dadpfl.py::test_sparsity_never_falls_and_stops_at_the_target",
    "tests/methods/fedpse/test_fedpse.py::test_moments_that_are_kept_are_the_same_in_worker_processes*",
    "tests/methods/perfedmask/test_perfedmask.py::test_engines_agree_and_a_killed_run_goes_on*",
    "tests/methods/perfedmask/test_solver.py::test_a_large_fleet_of_different_devices",
    "tests/methods/perfedmask/test_solver.py::test_both_solvers_work_in_one_process*",
    "tests/methods/perfedmask/test_solver.py::test_nobody_beats_the_optimised_and_all_keep_to_budgets",
    "tests/methods/perfedmask/test_solver.py::test_the_papers_own_solver_keeps_to_budgets",
    "tests/methods/pfedgate/test_pfedgate_figures.py::test_a_run_draws_its_gates*",
    "tests/methods/pfedgate/test_pfedgate_figures.py::test_gates_of_clients_with_the_same_labels*",
    "tests/methods/test_contract.py::test_loss_falls*",
    "tests/methods/test_fedscr.py::test_it_learns",
    "tests/methods/test_fedspa.py::test_a_searcher_that_grows_masks_in_place_hurts_nobody",
    "tests/methods/test_fedspa.py::test_sub_fedavg_comes_down_to_its_density",
    "tests/methods/test_fedstc.py::test_nothing_is_lost_between_rounds",
    "tests/models/test_models.py::test_printed_numbers[[]resnet18-bn*",
    "tests/papers/test_papers.py::test_a_line_off_by_one_in_its_last_digit_fails",
    "tests/papers/test_papers.py::test_every_line_of_*",
    "tests/papers/test_papers.py::test_every_result_can_fail*",
    "tests/papers/test_papers.py::test_figures_that_differ*",
    "tests/papers/test_papers.py::test_wrong_code_fails_the_command[[]methods.pfedgate.pfedgate.PFedGate.merge*",
    "tests/papers/test_waiting_figure.py::test_figure_of_waiting*",
    "tests/reports/test_comparison.py::test_comparison_is_written_the_same_twice",
    "tests/reports/test_comparison.py::test_costs_are_those_of_the_device",
    "tests/reports/test_comparison.py::test_figures_of_small_and_large_runs*",
    "tests/reports/test_comparison.py::test_one_run_has_no_gain",
    "tests/reports/test_comparison.py::test_what_methods_tell_is_shown_and_drawn",
    "tests/reports/test_sweep_table.py::test_figures_are_written_the_same_twice",
    "tests/test_examples.py::test_the_notebook_runs",
    "tests/test_readme.py::test_the_python_example_runs",
)
"""Single tests of more than some seconds whose subject a shorter test covers too, by node id."""
