"""Fixtures for the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Commands that take long on a busy machine print no lines that tests do not expect.
os.environ["COLLC_PROGRESS"] = "0"

# No test is timed: beside other jobs one example may take as long as it likes.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Tests that take long. `make slow` runs them. Most are members of families whose other members stay in the default run.
LONG = frozenset(
    {
        "test_allocations.py::test_trees_are_never_slower_than_rings[dgx1v-25-46]",
        "test_bad_values.py::test_every_option_with_every_bad_value[simulate]",
        "test_bench_gpus.py::test_every_collective_is_measured_and_right[1]",
        "test_bench_gpus.py::test_every_collective_is_measured_and_right[3]",
        "test_bench_gpus.py::test_the_table_shows_it_when_asked",
        "test_bench_gpus.py::test_where_the_time_went[Simple]",
        "test_canonical.py::test_large_clusters_keep_their_fingerprints_whatever_their_order[fat-tree-values3-True]",
        "test_canonical.py::test_large_clusters_keep_their_fingerprints_whatever_their_order[torus-values4-True]",
        "test_client.py::test_every_element_of_every_call[dgx1v-8-processes-1]",
        "test_copied_classes.py::test_every_weighting_of_calls_by_copies[random:1-settings0]",
        "test_copy_engines.py::test_every_wait_of_an_all_gather_counts",
        "test_cuda_chaos.py::test_random_calls_in_groups_and_split_communicators[Simple]",
        "test_cuda_classes.py::test_a_gpu_that_has_lost_lanes_of_pcie_leaves_the_class_out",
        "test_cuda_classes.py::test_an_error_of_one_class_says_where_data_pass_through_host_memory",
        "test_cuda_classes.py::test_every_collective_and_type_between_processes[own]",
        "test_cuda_classes.py::test_kernels_tell_tune_how_long_each_class_took",
        "test_cuda_classes.py::test_the_balancer_follows_what_kernels_tell",
        "test_cuda_classes.py::test_tune_writes_a_file_for_gpus",
        "test_cuda_classes.py::test_weights_do_not_move[settings0-6]",
        "test_cuda_jobs.py::test_a_communicator_ends_beside_a_waiting_kernel[abort]",
        "test_cuda_jobs.py::test_a_communicator_ends_beside_a_waiting_kernel[destroy]",
        "test_cuda_jobs.py::test_gpus_without_peer_access[0-1]",
        "test_cuda_jobs.py::test_transfers_between_processes[neighbours]",
        "test_cuda_protocols.py::test_every_collective_over_a_forced_protocol[float-Simple]",
        "test_cuda_runtime.py::test_programs_whose_steps_are_written_out[Simple]",
        "test_cuda_servers.py::test_calls_graphs_and_transfers_over_network_namespaces[2+2 over two rails]",
        "test_default_reach.py::test_quick_machines_reach_both_today[all_reduce-a100x4-nv4]",
        "test_direct_jobs.py::test_an_answer_is_of_the_last_offer",
        "test_direct_jobs.py::test_jobs_and_habits_go_on_with_buffers_that_are_lent[machine1]",
        "test_distance.py::test_ranks_that_find_it_out_at_different_times_compute_the_same[everywhere]",
        "test_distance.py::test_ranks_that_find_it_out_at_different_times_compute_the_same[halves]",
        "test_distance.py::test_thresholds_of_the_distance_count",
        "test_emulation.py::test_every_type_and_operation[Simple-all_reduce]",
        "test_failures.py::test_sends_and_receives[3]",
        "test_failures.py::test_under_a_launcher_survivors_raise_or_are_ended[all_reduce-torchrun]",
        "test_failures.py::test_what_cannot_be_right_is_refused_with_its_reason[3]",
        "test_found_machine.py::test_the_largest_files_that_variables_name_take_little_memory[COLLC_TOPOLOGY]",
        "test_gpu_check.py::test_a_part_that_hangs_is_ended_and_the_others_have_their_rows",
        "test_gpu_check.py::test_buffers_that_peers_read_are_checked_in_one_process_and_in_several",
        "test_gpu_check.py::test_it_checks_every_type_and_operation",
        "test_gpu_check.py::test_its_tables_are_what_collc_writes_today[2-slots]",
        "test_gpu_check.py::test_its_tables_are_what_collc_writes_today[chain]",
        "test_gpu_check.py::test_its_tables_are_what_collc_writes_today[hgx-h100]",
        "test_gpu_check.py::test_processes_kernels_that_wait_and_ranks_that_die",
        "test_gpu_check.py::test_processes_that_are_joined_otherwise_are_not_run",
        "test_idle_links.py::test_all_reduce_on_eight_h800_gains_a_tenth_by_default",
        "test_idle_links.py::test_cuts_are_judged_with_the_chunks_that_memory_allows[auto]",
        "test_idle_links.py::test_cuts_are_judged_with_the_chunks_that_memory_allows[nvlink,pcie]",
        "test_in_switch_choice.py::test_all_other_programs_stay_as_they_are",
        "test_in_switch_choice.py::test_large_sums_of_eight_gpus_are_inside_the_switch",
        "test_in_switch_choice.py::test_where_it_is_not_faster_there_is_none",
        "test_kernel_sums.py::test_every_type_and_operation_gets_the_bits_that_slots_give[processes-everywhere]",
        "test_library.py::test_every_collective_and_root_has_a_program_for_every_size[tuned cuda]",
        "test_lined_servers.py::test_calls_and_graphs_over_network_namespaces[2+2 over two rails]",
        "test_lined_servers.py::test_calls_of_both_protocols_in_turn",
        "test_load_chains.py::test_a_block_waits_for_two_loads_before_its_first_step[75-75]",
        "test_load_chains.py::test_a_block_waits_for_two_loads_before_its_first_step[80-100]",
        "test_load_chains.py::test_a_chain_that_comes_back_is_found[a block asks first whether it has steps]",
        "test_machines.py::test_every_collective[aab]",
        "test_model_tables.py::test_a_mirror_that_takes_longer_chooses_for_itself",
        "test_model_tables.py::test_fast_links_get_rings_over_many_channels",
        "test_nested.py::test_plans_are_proved_up_to_the_symmetry[across less a GPU-Collective.ALL_GATHER]",
        "test_net_class.py::test_every_collective_and_random_weights[kinds0]",
        "test_nvrtc_build.py::test_each_has_the_instructions_of_its_chip[60]",
        "test_nvrtc_build.py::test_loops_move_sixteen_bytes_at_a_time[60]",
        "test_nvrtc_build.py::test_no_kernel_spills_or_uses_local_memory[60]",
        "test_orders.py::test_every_machine_has_channels_or_a_reason[mi250x]",
        "test_packing_solvers.py::test_ilp_never_has_more_trees_than_exact[Collective.ALL_GATHER]",
        "test_pascal_ordering.py::test_a_fault_is_found[PUBLISH_BARRIER]",
        "test_pascal_ordering.py::test_a_fault_is_found[RELAXED_STORE]",
        "test_pascal_ordering.py::test_every_collective_under_many_schedules[Simple-all_reduce]",
        "test_random_jobs.py::test_wrong_bytes_are_found[machine1]",
        "test_reduced_everywhere.py::test_as_many_ranks_as_one_hop_joins[LL-8]",
        "test_reduced_everywhere.py::test_as_many_ranks_as_one_hop_joins[LL128-8]",
        "test_several_sets.py::test_each_set_runs_what_a_library_of_it_alone_does[hgx-h100-sets0]",
        "test_several_sets.py::test_machines_after_losses_are_chosen_for_by_the_model_too",
        "test_solver_limits.py::test_a_search_that_ends_early_claims_only_what_it_proves"
        "[no call ends-dgx1v-Collective.ALL_GATHER]",
        "test_solver_limits.py::test_a_search_that_ends_early_claims_only_what_it_proves"
        "[no call ends-dgx1v-Collective.REDUCE_SCATTER]",
        "test_solver_limits.py::test_a_search_that_ends_early_claims_only_what_it_proves"
        "[no call ends-rails-Collective.BROADCAST]",
        "test_solver_limits.py::test_a_search_that_ends_early_claims_only_what_it_proves"
        "[no call ends-rails-Collective.REDUCE]",
        "test_solver_limits.py::test_the_last_lp_counts_where_the_proof_runs_out",
        "test_split.py::test_the_models_split_stays_below_the_proof[hgx-h800-Collective.ALL_GATHER]",
        "test_torch_backend.py::test_every_collective[3]",
        "test_torch_backend.py::test_futures_callbacks_and_groups[3]",
        "test_tuning_file.py::test_every_rank_runs_the_file",
    }
)
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if f"{item.path.name}::{item.name}" in LONG:
            item.add_marker(pytest.mark.slow)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fails a run that skipped all its tests, as pytest fails a run without tests: it checked nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")
    if reporter is None or is_worker or exitstatus != pytest.ExitCode.OK:
        return
    if reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


class Golden:
    """Compares texts with the files under tests/golden/<stage>/."""

    def __init__(self, update: bool) -> None:
        self.update = update

    def check(self, name: str, text: str) -> None:
        path = GOLDEN / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no golden file {name}: run pytest --update-golden and read what it writes"
        assert text == path.read_text(encoding="utf-8"), f"{name} differs: run pytest --update-golden and read the diff"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True, scope="session")
def _build_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests share one build cache of their own unless the caller chose one."""
    import os

    os.environ.setdefault("COLLC_CACHE", str(Path(__file__).parent.parent / "build" / "test-cache"))
