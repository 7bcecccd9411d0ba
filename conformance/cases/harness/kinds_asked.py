"""Why a fault is not asked of every kind of callback: reviewed data.

A fault that leaves a kind out without a reason fails a test, and so does a reason for a fault that leaves none out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ...spec.external_callbacks import ALL_CALLBACKS
from ...spec.promises import OPTIONS
from .registry import Fault

BASE = tuple(one.name for one in ALL_CALLBACKS if one.name not in OPTIONS and not one.parts)
"""The kinds: callbacks that are no option of another one and no mixture."""

_PRINTS = "a print is a tap or a debug callback whose function writes: those are asked"
_ONE_OF_EACH = "one kind of each function: the others share its handler and its results"
_PROCESS = f"each cell is a process: {_ONE_OF_EACH}"
_RESULTS = "it is about results: others have none, or their function does not return them"
_TAPS = "it is about the queue, or about what taps alone are told; others do not queue"
_BUFFERS = "it is about buffers, which others do not hand out"
_EFFECTS = "it counts calls, which is promised of callbacks with an effect alone"
_DATA = "composed programs ask every kind for each type, shape and tree; this adds values and sizes"
_TARGETS = "it is about a target of the runtime, without a library"
_COMPILER = "a public report of this kind; composed programs have the construct for all others"
_INNER = "what a callback runs inside does not depend on how it is ordered: one kind of each transport"
_OWN = "it is about a function or a setting of the library that no callback takes part in, or each in the same way"
_TEXTS = "only prints have a text"
_ARGUMENTS = "each function has arguments of its own: those of the others are tests, since no program comes to be"
_CORPUS = "a program of the corpus has callbacks of several kinds, and is entered under one of them"
_SHARED = "it is about the way that all kinds share; these kinds go there by each transport"

ALIKE: Mapping[str, str] = {
    _ARGUMENTS: """
        buffers_that_are_nearly_right numbers_that_are_nearly_devices shapes_that_are_nearly_right wrong_arguments
        wrong_arguments_of_a_call wrong_arguments_of_buffers
    """,
    _BUFFERS: """
        aliased_by_name aliases_by_number command_buffers fails_and_is_kept
        forgets_what_a_group_held keeps_its_view operands_by_name parts_of_buffers returns_a_value
        same_types_with_and_without_alias shared_in_a_batch
    """,
    _COMPILER: """
        cond_without_results equal_functions_without_operands loop_without_operands
    """,
    _CORPUS: """
        fuzz_buffers_in_scan fuzz_eager_kinds fuzz_grad_checkpoint_call fuzz_grad_of_grad fuzz_grad_scan_io
        fuzz_grad_scan_rules fuzz_jvp_of_grad fuzz_jvp_while_rules fuzz_mesh_loops fuzz_ordered_of_jax
        fuzz_pmap_collectives fuzz_pmap_moves fuzz_prints_in_loops fuzz_pure_moved_out fuzz_rule_without_cotangent
        fuzz_shard_map_collectives fuzz_shard_map_loops fuzz_slopes_in_vmap fuzz_tangent_of_branch
        fuzz_unordered_of_jax fuzz_vmap_cond fuzz_vmap_in_vmap fuzz_vmap_while_tap fuzz_while_condition
    """,
    _DATA: """
        all_64_bits dtypes narrow_dtypes shapes small_types_beside_others trees typed_keys
    """,
    _EFFECTS: """
        beside_derivatives condition_with_frozen_carry equal_operands implicit_derivative loop_with_large_carry
        scan_without_operands
    """,
    _INNER: """
        decomposes_on_the_host generations refused_and_started_again refused_three_levels_deep runs_jax
        runs_jax_on_all runs_mesh runs_pmap starts_callbacks_on_all
    """,
    _ONE_OF_EACH: """
        callers_are_let_go callers_of_causes_are_let_go cause_of_another_origin collects_garbage
        conditions_however_changed dropped_while_running eagerly_forgotten equal_functions exceptions_of_any_class
        failure_lets_go frames_of_the_library held_in_shard_map raises_on_one
        same_function_of_other_operands shape_first small_types_at_each_run unawaited_runs_leave_nothing
        which_has_ended without_tracing
    """,
    _OWN: """
        doctor_tells ends_in_the_users_file installed_as_alone installed_for_a_block
        modules_of_the_program refused_install refuses_a_timeout shown_in_a_table
        trace_of_a_block_that_raises trace_refuses uninstalled_in_a_block
        wrong_settings
    """,
    _PRINTS: """
        around_shard_map blocks_until_released compiled_ahead donated equal_programs_from_a_cache exported
        fast_dispatch feeds_shard_map in_solvers keys_on_a_mesh memory_kinds odd_lengths one_of_the_branches
        partially_manual predicate_through_carries predicate_through_constants refused_in_parts runs_jax_inside
        same_function_of_other_types serialized special_exceptions two_threads waits_for_operand
    """,
    _PROCESS: """
        forks killed_before_sum killed_in_call os_exit raises_before_sum running_at_exit
        shared_executables signals stopped_before_sum
    """,
    _RESULTS: """
        cause_at_each_run causes_are_the_functions causes_of_two_threads changes_its_result
        containers_that_read_leaves dicts_in_any_order empty_beside_others error_mark explicit_mesh
        fails_in_a_large_program fails_in_a_while_loop failures_in_tasks forms_of_results keeps_signs_of_zeros
        large_forms_of_results large_strided_results legitimate_mark mapped none nothing_after_a_failure python_number
        raises_before_collective raises_in_one_process reads_large_operand result_reaches_all results_that_are_checked
        results_without_a_place results_without_elements returns_keys reuses_its_result row_for_a_column
        small_types_in_lanes strided_results strided_results_at_once varies_as_its_operands varies_over_two_axes
        varies_with_each_operand wide_results wrong_after_right wrong_count wrong_dtype wrong_shape wrong_tree
    """,
    _SHARED: """
        all_callbacks_are_told all_devices_are_told begun_before_the_trace bytes_of_small_types end_is_logged
        error_of_a_generator fails_in_a_wide_program failure_is_traced first_and_last_are_told
        forks_at_a_barrier forks_beside_a_program held_beside_an_effect held_functions in_profiles is_traced
        lanes_after_inner_runs lanes_along_a_mesh many_programs mutable_arrays names_objects
        nested_in_size_one other_byte_order runs_at_once_are_traced runs_leave_nothing
        says_all_of_odd_failures started_in_a_queue_and_beside trace_beside_others trace_breaks_off unreadable_error
        unreduced_operand where_eager_callbacks_are
    """,
    _TAPS: """
        all_that_wait_are_told barrier_covers_nested_and_queued barrier_of_each_process budget_of_small_types
        child_taps_again child_taps_large counted_from_the_first_look
        counted_inside_and_after_clearing fails_before_calls flags forks_beside_a_queue
        forks_while_counted forks_while_traced full_queue gives_memory_back goes_on_without_a_barrier
        jaxs_barrier_covers_both jaxs_barrier_that_raises
        later_budget log_that_raises more_failures_than_are_kept nested_batch pending_at_exit
        room_is_counted several_fail starts_programs_below_many stops_after_programs
        stops_and_starts stops_at_once tap_raises_in_one_process taps_go_on_without_a_barrier
        taps_while_stopped tells_of_queued threads_on_tracks trace_of_an_exit waits_are_counted
        waits_for_room_in_a_block
    """,
    _TARGETS: """
        long_result longest_result more_dimensions no_result right_result short_result
    """,
    _TEXTS: """
        debug_prints_exactly debug_prints_large_arrays equal_labels prints_each_part prints_exactly
        prints_inside_a_write prints_of_derivatives prints_of_threads_stay_apart prints_to_standard_output
        prints_with_options_of_the_line prints_with_options_of_the_trace prints_without_a_console
    """,
}
"""Faults that leave kinds out for the same reason."""

WHY_NOT_ALL: Mapping[str, str] = {
    **{fault: reason for reason, faults in ALIKE.items() for fault in faults.split()},
    "advises_of_arrays": "buffers and DLPack objects have other attributes; ordered kinds share the way of these",
    "all_after_one": "it is about what keeps an order: one of each transport",
    "all_used_after_return": "only dlpack_callback lends such an object",
    "along_each_axis": "the others have no results along the batch",
    "arguments_of_any_name": "the other functions take their arguments in a tree: they have no names",
    "arguments_without_values": "a print writes such a leaf as it writes others; tests read its text",
    "arrows_outside_jit": "only taps are queued",
    "as_long_as_the_batch": "fault.ranks_and_axes asks kinds without a method, which share the rule",
    "barrier_covers": "not promised of pure callbacks",
    "barrier_in_time": "not promised of pure callbacks",
    "beside_ordered_ones_of_jax": "it is about tokens: a tap has one alone, and a call has one beside a result",
    "between_branches_of_platforms": "it is about tokens, which ordered callbacks have",
    "branches_and_then_functions": "it is about tokens, which ordered callbacks have: a tap and one of JAX's functions",
    "calls_alone_are_counted": "others tap, return nothing, or share the way of these: fault.is_counted asks them",
    "changes_its_operand": "others get no NumPy array of their own",
    "changes_what_it_is_told": "only a tap is told its transformations",
    "changing_device_sets": "it is about tokens, which ordered callbacks have",
    "child_leaves_the_trace": "the trace's file knows no kinds",
    "chosen_of_any_order": "the others have no argument for a device: one takes a number, and one a sharding",
    "condition_of_lanes_that_differ": "others are refused there, or fault.predicate_through_carries asks them",
    "conditions_of_mutable_arrays": "the rule asks the loop, and takes each callback alike: tests ask every kind",
    "containers_of_one": "of the others, as in JAX, a tuple of one is accepted for its item",
    "converts_as_numpy": "only dlpack_callback lends such an object",
    "cotangents_of_mixed_leaves": "others have no cotangents: fault.called_with_tangents",
    "derivatives_of_mixed_leaves": "a setting of taps alone",
    "devices_in_both_orders": "it is about tokens, which ordered callbacks have",
    "donated_again": "it is about the end of a dispatch: one kind of each way of dispatching",
    "draws_inside_and_outside": "only io_callback has results and may have no operands",
    "dropped_while_one_waits": "only taps wait in queues",
    "eager_functions": "others need no program outside jit",
    "empty_batches": "the others are refused under vmap, or have no result from which the type is seen",
    "empty_format": "only debug.print has a format",
    "ends_without_results": "a tap's failure does not end its program, and others have results",
    "equal_but_for_values": "ordered debug callbacks and those with side effects differ in their effect alone",
    "exact_results": "calls share their way over a mesh: fault.keeps_signs_of_zeros asks the others",
    "examples_of_results": "only a call takes examples in place of shapes",
    "failure_leaves_operands": "a tap and a debug callback have no results; the others lend the operand as these do",
    "false_functions": "a print has no function of the user; the others share the way of these",
    "fields_in_two_calls": "only debug.print has a format",
    "fields_of_any_name": "only debug.print has a format",
    "first_line_of_any_text": "a print is named by its labels; the others share the handler of these",
    "flags_of_absl_set_later": "the flag is about taps and calls alone",
    "forks_after_a_failure": "the log of failures is one for all",
    "formats_of_odd_values": "only debug.print has a format",
    "functions_of_reductions": "JAX itself refuses a callback with an effect there; the pure ones share the refusal",
    "functions_with_own_equality": "a print has no function of the user; the others share the way of these",
    "gives_keys_back": "fault.returns_keys asks a call, fault.keys_on_a_mesh every kind",
    "goes_on_beside_a_slow_device": "it is about what keeps an order: one of each transport",
    "has_cause": "a call's cause is asked by fault.raises of call, which has all layouts",
    "has_no_effect": "the others have one",
    "held_and_unused": "fault.held_functions asks those with other effects",
    "in_gmres": "it is about the transpose: one kind of each rule",
    "in_kernels_imported_later": "a tap has a quick way for a function that it knows; others go the way of a call",
    "in_order_on_its_device": "only a call keeps an order with taps, has a result, and names its device",
    "inline": "others have no value of their own in the thread that calls: fault.eager_functions",
    "inline_is_counted": "a setting of taps and calls alone",
    "installed": "it asks those of JAX in one cell",
    "installed_as_before": "it asks those of JAX in one cell",
    "installed_forms": "it asks those of JAX in one cell",
    "installed_on_a_named_device": "only sharding= names a device",
    "installed_with_options": "it asks those of JAX in one cell",
    "invariant_predicate": "a pure callback may be dropped; others are refused where they are differentiated, or alike",
    "is_counted": "not promised of pure callbacks, which may as well not run",
    "is_forgotten": "a print has no function of the user",
    "jax_arrays_in_each_form": "prints have no function, and buffers are no arrays",
    "jax_arrays_of_each_type": "the wrapped function is the same for all; debug callbacks have static operands, too",
    "jax_arrays_of_every_argument": "the wrapped function is the same for all; these take arguments by name",
    "jax_arrays_under_a_guard": "the wrapped function is the same for all",
    "jaxs_barrier_covers": "a queue, and a token: the others have the one or the other",
    "jaxs_barrier_covers_all": "a tap's function runs in another thread: of the others a token tells",
    "keeps_its_operand": "others get no NumPy array of their own",
    "keeps_its_parts": "others do not run on each device under jit over a mesh, or get no NumPy array of their own",
    "keeps_large_operands": "fault.sizes asks every kind",
    "kinds_of_memory": "it is about tokens: taps, and JAX's functions with a token and without one",
    "lanes": "taps are not batched by lane, and pure buffer callbacks without vmap_method are refused",
    "large_sizes": "64 MiB take time; the copy of an operand and of a result is the same for all",
    "left_without_division": "others are refused there: fault.partially_manual asks them",
    "logs_nothing": "the log is of programs and barriers, whatever kinds they have",
    "loop_along_a_mesh": "the rule asks the loop, and takes each callback alike",
    "loop_steps": "only calls with results depend on the dispatch of loops",
    "malformed_format": "it is about formats",
    "many_are_forgotten": "a print has no function of the user",
    "many_calls_between_sums": "devices take turns for calls that go through Python",
    "many_values": "only taps go by a ring; ordered debug callbacks go one by one",
    "memory_kind_beside_jaxs": "it is about tokens, which ordered callbacks have",
    "method_in_the_error": "the others have no method: they get single elements, or are refused",
    "methods_of_side_effects": "only these two have has_side_effect=",
    "mutable_arrays_of_all": "it asks them all in one cell, since JAX's own refuse parts of mutable arrays",
    "named_by_a_mesh_of_one": "only sharding= names a device",
    "named_outside_jit": "the others are not told their device",
    "names_a_print_by_its_labels": "only prints have labels",
    "names_its_device": "only sharding= names a device",
    "nested_shard_maps": "it is about tokens: a tap has one alone, and a call has one beside a result",
    "no_tap_after_a_failure": "only a call keeps an order with taps and has a result",
    "older_failures_let_go": "fault.callers_are_let_go asks those that end their program; all have one log",
    "on_two_meshes_at_once": "only calls and taps can be told their device, and a tap does not hold its program up",
    "one_of_its_devices": "it is about calls in order, for which the device waits",
    "one_used_after_return": "only dlpack_callback lends such an object",
    "order_across_threads": "others keep no order",
    "other_containers_around": "a call refuses other containers: pure_callback and io_callback accept them, as in JAX",
    "other_containers_in_place_of_one": "a call refuses other containers; pure_callback and io_callback do not",
    "other_keys": "JAX takes a result for its arrays alone; those of hostcb share the check of call",
    "outside_jit_after_all": "ordered kinds with results wait outside jit in the same way",
    "outside_jit_after_its_device": "others keep no order",
    "outside_of_the_users_mesh": "all leave the mesh in the same two places: an ordered kind and an unordered one",
    "partially_manual_without_operands": "hostcb's other kinds are refused there, or have results",
    "parts_in_order": "only ordered debug callbacks have partitioned= beside ordered=",
    "parts_without_operands": "only debug callbacks have partitioned=",
    "places_by_any_integer": "the others name a device by sharding=, or none",
    "places_of_lanes": "the others have no argument for a device, or no vmap_method",
    "policies_of_callbacks": "others have results: fault.policies_of_checkpoints asks taps and calls",
    "policies_of_checkpoints": "a print is one of these, and others are refused in a checkpoint or not counted",
    "predicate_of_all_lanes": "not promised of pure callbacks",
    "predicate_of_columns": "others are refused there: fault.predicate_through_carries asks that",
    "prints_and_returns": "only prints and taps have result=, and a test has taps",
    "quick_calls": "devices take turns for calls that go through Python",
    "raises": "debug callbacks have no result: fault.raises_unseen; special_exceptions asks those with side effects",
    "raises_beside_a_full_log": "it asks those of JAX in one cell",
    "raises_outside_jit": "a tap's failure comes at the barrier, and a debug callback has no result",
    "raises_unseen": "others have results, or are taps: fault.raises",
    "ranks_and_axes": "taps get the batch as it lies, and others without a method are refused",
    "reduces_its_result": "callbacks with a token compile, and so do pure ones, of which the result is used",
    "refused_where_repeated": "the others may run more often: they show what runs, are pure, or keep their result",
    "refused_while_traced": "it asks each transport in one cell: fault.partially_manual asks every kind",
    "results_like_operands": "only dlpack_callback takes a function that makes the types of its results",
    "returned_in_place": "only dlpack_callback has in_place=",
    "returns_its_operands": "the others get copies of their operands",
    "returns_something": "only buffer_callback fills memory that it is given",
    "returns_something_while_watched": "only buffer_callback fills memory that it is given",
    "runs_without_dispatch": "JAX runs a program with an effect by its own dispatch alone",
    "same_at_each_run": "prints, and buffer callbacks with side effects, are dispatched as one of these",
    "same_function_in_parts": "only debug callbacks have partitioned=",
    "same_function_of_other_results": "only in order it is known which result a call returns",
    "same_function_on_other_devices": "the others name a device by sharding=: fault.names_its_device asks them",
    "same_tap_of_a_key": "it is about the results of taps",
    "says_what_came": "it asks a call and a pure callback, and each has its own words: the others share these",
    "several_operands": "others take one operand, or wrap such a function",
    "shapes_of_each_call": "only dlpack_callback takes a function that makes the types of its results",
    "shapes_that_can_be_called": "only dlpack_callback takes a function that makes the types of its results",
    "shard_map_without_values": "a print is one of these; a pure callback whose result is unused does not run",
    "shown_in_many_lines": "a print has no function of the user; the others share the way of these",
    "sizes": "numpy writes only a summary of so large an array",
    "sizes_together": "only taps go by a ring, where each operand has a place or a block",
    "slow": "fault.barrier_covers asks every kind",
    "slow_in_another_thread": "fault.barrier_covers asks every kind in the thread of the program",
    "small_results_beside_others": "others have no result, or refuse elements of less than a byte",
    "started_in_turn": "it is about programs that nobody waits for: a tap starts one without holding its own up",
    "starts_callbacks": "fault.starts_others asks the other kinds",
    "starts_others": "fault.starts_callbacks asks taps and calls",
    "static_ones_between": "other kinds have no static arguments; a print's are its fields",
    "stream_of_an_equal_callback": "only dlpack_callback has with_stream=",
    "streams_by_name": "only dlpack_callback has with_stream=",
    "tapped_tangents": "fault.called_with_tangents asks every kind",
    "taps_inside_on_its_device": "only a call has its device; fault.starts_others asks every kind",
    "taps_of_an_inner_pmap": "only taps are queued",
    "taps_of_derivatives": "a setting of taps alone",
    "text_in_format": "it is about formats",
    "trace_of_an_interrupted_wait": "the wait is the same for all",
    "traced_at_each_change": "it asks one of JAX's functions: the change tells the caches of all programs",
    "types_by_dlpack": "only dlpack_callback names types by DLPack",
    "unaware": "it asks those of JAX in one cell",
    "unknown_device": "only sharding= names a device",
    "unused_after_a_pure_one": "the order of two kinds of one signature: a pure one, and one with an effect",
    "used_after_return": "only dlpack_callback lends such an object",
    "vectorized_as_before": "a call never had this method, and others have none",
    "waits_between_calls": "devices take turns for calls that go through Python",
    "ways_of_derivatives": "a setting of taps alone",
    "weak_types_stay": "the others do not let their operand through, or have no operand of Python",
    "without_operands_in_checkpoints": "a print is one of these, and others are refused in a checkpoint or not counted",
    "wraps_itself": "all kinds name their functions alike: one with transformations, one without",
    "wrong_formats": "it is about formats",
}


def kinds_left_out(faults: Iterable[Fault]) -> dict[str, list[str]]:
    """The kinds of callback of which each fault is not asked, where it leaves any out."""
    asked: defaultdict[str, set[str]] = defaultdict(set)
    for fault in faults:
        asked[fault.kind].add(fault.callback)
    left_out = {kind: [name for name in BASE if name not in names] for kind, names in sorted(asked.items())}
    return {kind: names for kind, names in left_out.items() if names}


def show(faults: Iterable[Fault]) -> str:
    """A line for each fault that leaves kinds out, with its reason."""
    lines = ["", "Faults that are not asked of every kind:"]
    for kind, names in kinds_left_out(faults).items():
        lines.append(f"  {kind}: not {' '.join(names)}: {WHY_NOT_ALL.get(kind, 'HOLE: no reason')}")
    return "\n".join(lines)
