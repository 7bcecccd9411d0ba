"""Why a fault is not asked of every kind of callback: reviewed data, a line for each fault.

A fault that leaves a kind out without a reason fails a test, and so does a reason for a fault that leaves none out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ..spec.external_callbacks import ALL_CALLBACKS
from ..spec.promises import OPTIONS
from .fault import Fault

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

WHY_NOT_ALL: Mapping[str, str] = {
    "around_shard_map": _PRINTS,
    "barrier_covers": "not promised of pure callbacks",
    "barrier_covers_eager": "ordered kinds with results wait outside jit in the same way",
    "barrier_in_time": "not promised of pure callbacks",
    "barrier_of_each_process": _TAPS,
    "beside_derivatives": _EFFECTS,
    "blocks_until_released": _PRINTS,
    "changes_its_operand": "others get no NumPy array of their own",
    "changing_device_sets": "it is about tokens, which ordered callbacks have",
    "clears_backends": _PROCESS,
    "collects_garbage": _ONE_OF_EACH,
    "command_buffers": _BUFFERS,
    "compiled_ahead": _PRINTS,
    "cond_without_results": _COMPILER,
    "condition_with_frozen_carry": _EFFECTS,
    "conditions_of_mutable_arrays": "the rule asks the loop, and takes each callback alike: tests ask every kind",
    "debug_prints_exactly": _TEXTS,
    "decomposes_on_the_host": _INNER,
    "derivatives_of_mixed_leaves": "a setting of taps alone",
    "doctor_tells": _OWN,
    "donated": _PRINTS,
    "dropped_while_running": _ONE_OF_EACH,
    "dtypes": _DATA,
    "eager_functions": "others need no program outside jit",
    "eager_numbers": "only taps return their operands",
    "eagerly_forgotten": _ONE_OF_EACH,
    "equal_but_for_values": "ordered debug callbacks and those with side effects differ in their effect alone",
    "equal_functions": _ONE_OF_EACH,
    "equal_operands": _EFFECTS,
    "equal_labels": _TEXTS,
    "equal_programs_from_a_cache": _PRINTS,
    "error_mark": _RESULTS,
    "error_of_a_generator": _SHARED,
    "equal_prints": _TEXTS,
    "errors_travel": _SHARED,
    "explicit_mesh": _RESULTS,
    "exact_results": "calls share their way over a mesh: fault.keeps_signs_of_zeros asks the others",
    "exported": _PRINTS,
    "fails_and_is_kept": _BUFFERS,
    "fails_before_calls": _TAPS,
    "fails_in_a_wide_program": _SHARED,
    "fails_in_a_while_loop": _RESULTS,
    "failure_is_traced": _SHARED,
    "fast_dispatch": _PRINTS,
    "feeds_shard_map": _PRINTS,
    "flags": _TAPS,
    "follows_slow_taps": "it is about the queue, which a call empties as each ordered kind does; JAX has no taps",
    "forks": _PROCESS,
    "forks_beside_a_queue": _TAPS,
    "full_queue": _TAPS,
    "fuzz_buffers_in_scan": _CORPUS,
    "fuzz_eager_kinds": _CORPUS,
    "fuzz_grad_checkpoint_call": _CORPUS,
    "fuzz_grad_of_grad": _CORPUS,
    "fuzz_grad_scan_io": _CORPUS,
    "fuzz_grad_scan_rules": _CORPUS,
    "fuzz_jvp_of_grad": _CORPUS,
    "fuzz_jvp_while_rules": _CORPUS,
    "fuzz_mesh_loops": _CORPUS,
    "fuzz_ordered_of_jax": _CORPUS,
    "fuzz_pmap_collectives": _CORPUS,
    "fuzz_pmap_moves": _CORPUS,
    "fuzz_prints_in_loops": _CORPUS,
    "fuzz_pure_moved_out": _CORPUS,
    "fuzz_rule_without_cotangent": _CORPUS,
    "fuzz_shard_map_collectives": _CORPUS,
    "fuzz_shard_map_loops": _CORPUS,
    "fuzz_slopes_in_vmap": _CORPUS,
    "fuzz_tangent_of_branch": _CORPUS,
    "fuzz_unordered_of_jax": _CORPUS,
    "fuzz_vmap_cond": _CORPUS,
    "fuzz_vmap_in_vmap": _CORPUS,
    "fuzz_vmap_while_tap": _CORPUS,
    "fuzz_while_condition": _CORPUS,
    "generations": _INNER,
    "gets_jax_arrays": "the wrapped function is the same for all; tests ask the other functions",
    "gives_memory_back": _TAPS,
    "has_cause": "a call's cause is asked by fault.raises of call, which has all layouts",
    "has_no_effect": "the others have one",
    "held_functions": _SHARED,
    "implicit_derivative": _EFFECTS,
    "in_gmres": "it is about the transpose: one kind of each rule",
    "in_solvers": _PRINTS,
    "inline": "others have no value of their own in the thread that calls: fault.eager_functions",
    "is_counted": "not promised of pure callbacks, which may as well not run",
    "is_forgotten": "a print has no function of the user",
    "is_traced": _SHARED,
    "jaxs_barrier_covers": "a queue, and a token: the others have the one or the other",
    "jaxs_barrier_covers_eager": "a tap's function runs in another thread: the others run in the calling one",
    "keeps_its_operand": "others get no NumPy array of their own",
    "keeps_its_parts": "others do not run on each device under jit over a mesh, or get no NumPy array of their own",
    "keeps_its_view": _BUFFERS,
    "keeps_large_operands": "fault.sizes asks every kind",
    "keeps_signs_of_zeros": _RESULTS,
    "keyboard_interrupt": "fault.special_exceptions asks every kind",
    "keys_on_a_mesh": _PRINTS,
    "killed_before_sum": _PROCESS,
    "killed_in_call": _PROCESS,
    "lanes": "taps are not batched by lane, and pure buffer callbacks without vmap_method are refused",
    "lanes_along_a_mesh": _SHARED,
    "large_sizes": "64 MiB take time; the copy of an operand and of a result is the same for all",
    "legitimate_mark": _RESULTS,
    "long_result": _TARGETS,
    "longest_result": _TARGETS,
    "loop_steps": "only calls with results depend on the dispatch of loops",
    "loop_with_large_carry": _EFFECTS,
    "loop_without_operands": _COMPILER,
    "malformed_format": "it is about formats",
    "many_are_forgotten": "a print has no function of the user",
    "many_functions": "only taps have targets of their own",
    "many_programs": _SHARED,
    "many_values": "only taps go by a ring; ordered debug callbacks go one by one",
    "mapped": _RESULTS,
    "memory_kinds": _PRINTS,
    "more_dimensions": _TARGETS,
    "more_failures_than_are_kept": _TAPS,
    "mutable_arrays": _SHARED,
    "mutable_arrays_of_all": "it asks them all in one cell, since JAX's own refuse parts of mutable arrays",
    "names_its_device": "only sharding= names a device",
    "names_objects": _SHARED,
    "narrow_dtypes": _DATA,
    "nested_batch": _TAPS,
    "nested_shard_maps": "it is about tokens: a tap has one alone, and a call has one beside a result",
    "no_result": _TARGETS,
    "none": _RESULTS,
    "nothing_after_a_failure": _RESULTS,
    "odd_lengths": _PRINTS,
    "one_of_its_devices": "it is about calls in order, for which the device waits",
    "order_across_threads": "others keep no order",
    "os_exit": _PROCESS,
    "partially_manual": _PRINTS,
    "parts_of_buffers": _BUFFERS,
    "pending_at_exit": _TAPS,
    "printed_elements": "only id_print has a threshold",
    "prints_exactly": _TEXTS,
    "prints_of_threads_stay_apart": _TEXTS,
    "prints_to_standard_output": _TEXTS,
    "python_number": _RESULTS,
    "quick_calls": "devices take turns for calls that go through Python",
    "raises": "debug callbacks have no result: fault.raises_unseen; special_exceptions asks those with side effects",
    "raises_before_collective": _RESULTS,
    "raises_before_sum": _PROCESS,
    "raises_in_one_process": _RESULTS,
    "raises_on_one": _ONE_OF_EACH,
    "raises_unseen": "others have results, or are taps: fault.raises",
    "reads_large_operand": _RESULTS,
    "refused_while_traced": "it asks each transport in one cell: fault.partially_manual asks every kind",
    "result_reaches_all": _RESULTS,
    "returns_a_value": _BUFFERS,
    "refused_and_started_again": _INNER,
    "returns_keys": _RESULTS,
    "reuses_its_result": _RESULTS,
    "right_result": _TARGETS,
    "running_at_exit": _PROCESS,
    "runs_at_once_are_traced": _SHARED,
    "runs_jax": _INNER,
    "runs_jax_inside": _PRINTS,
    "runs_jax_on_all": _INNER,
    "runs_leave_nothing": _SHARED,
    "runs_mesh": _INNER,
    "runs_pmap": _INNER,
    "runs_without_dispatch": "JAX runs a program with an effect by its own dispatch alone",
    "says_what_came": "it asks a call and a pure callback, and each has its own words: the others share these",
    "scan_without_operands": _EFFECTS,
    "serialized": _PRINTS,
    "several_fail": _TAPS,
    "several_operands": "others take one operand, or wrap such a function",
    "shape_first": _ONE_OF_EACH,
    "shapes": _DATA,
    "shared_executables": _PROCESS,
    "short_result": _TARGETS,
    "signals": _PROCESS,
    "sizes": "numpy writes only a summary of so large an array",
    "slow": "fault.barrier_covers asks every kind",
    "slow_in_another_thread": "fault.barrier_covers asks every kind in the thread of the program",
    "special_exceptions": _PRINTS,
    "starts_callbacks": "fault.starts_others asks the other kinds",
    "starts_callbacks_on_all": _INNER,
    "starts_others": "fault.starts_callbacks asks taps and calls",
    "starts_programs_below_many": _TAPS,
    "stopped_before_sum": _PROCESS,
    "stops_and_starts": _TAPS,
    "stops_at_once": _TAPS,
    "strided_results": _RESULTS,
    "strided_results_at_once": _RESULTS,
    "switch_interval": _OWN,
    "tap_raises_in_one_process": _TAPS,
    "tapped_tangents": "fault.called_with_tangents asks every kind",
    "taps_of_derivatives": "a setting of taps alone",
    "taps_on_new_devices": _TAPS,
    "tells_of_queued": _TAPS,
    "text_in_format": "it is about formats",
    "trace_breaks_off": _SHARED,
    "trace_refuses": _OWN,
    "trees": _DATA,
    "two_threads": _PRINTS,
    "typed_keys": _DATA,
    "unknown_device": "only sharding= names a device",
    "unreadable_error": _SHARED,
    "used_after_return": "only dlpack_callback lends such an object",
    "waits_between_calls": "devices take turns for calls that go through Python",
    "waits_for_operand": _PRINTS,
    "where_eager_callbacks_are": _SHARED,
    "wide_results": _RESULTS,
    "without_tracing": _ONE_OF_EACH,
    "wrong_after_right": _RESULTS,
    "wrong_arguments": _ARGUMENTS,
    "wrong_arguments_of_a_call": _ARGUMENTS,
    "wrong_arguments_of_buffers": _ARGUMENTS,
    "wrong_count": _RESULTS,
    "wrong_dtype": _RESULTS,
    "wrong_formats": "it is about formats",
    "wrong_settings": _OWN,
    "wrong_shape": _RESULTS,
    "wrong_tree": _RESULTS,
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
