"""Patches of JAX's dispatch: hostcb passes its own tokens, collects errors, and tracks executions.

If this JAX runs programs in a way unknown to hostcb, hostcb patches nothing. JAX's own tokens then keep the order in
each thread. To keep the order between threads, CPU devices then run a program in the thread that dispatches it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from .registry import Cost, called_with, first_lost, known_as, private
from .runtime import backends_exist, without_mesh
from .waiting import (
    RUNTIME_TOKENS,
    RuntimeToken,
    UpToHost,
    cover_by_effects_barrier,
    covered,
    let_effects_barrier_wait,
    runtime_tokens,
)

_for_executions = functools.partial(
    private,
    without="On CPU, programs run in the thread that dispatches them, and ordered callbacks are refused if hostcb is "
    "imported after JAX has started its devices. A failure may fail later programs of the same thread.",
    promises=("H5", "H13", "H15"),
    cost=Cost.SOME,
    link="https://github.com/jax-ml/jax/issues/37587",
)
EXECUTOR = _for_executions(
    "jax._src.interpreters.pxla:ExecuteReplicated",
    "What runs programs with effects.",
    attributes=("keepalive", "ordered_effects", "has_unordered_effects", "_local_devices", "xla_executable"),
)
_CALL = _for_executions(
    "jax._src.interpreters.pxla:ExecuteReplicated.__call__",
    "Reports each execution of a program with callbacks.",
    signature=known_as("self args"),
)
_ADD_TOKENS = _for_executions(
    "jax._src.interpreters.pxla:ExecuteReplicated._add_tokens_to_inputs",
    "Starts each execution with a token that is ready.",
    signature=known_as("self input_bufs"),
)
_HANDLE_TOKENS = _for_executions(
    "jax._src.interpreters.pxla:ExecuteReplicated._handle_token_bufs",
    "Tells what to wait for at the end of an execution.",
    signature=known_as("self token_bufs sharded_token"),
)
_SHARDED_TOKEN = _for_executions(
    "jaxlib._jax:ShardedToken",
    "Tells the end of an execution on each device.",
    link=None,
    methods={"get_token": called_with(2)},
)
_for_processes = functools.partial(
    private,
    without="Programs with callbacks are refused in several processes.",
    promises=("H9", "H10"),
    cost=Cost.SOME,
)
_IN_HANDLER = _for_processes(
    "jax._src.interpreters.pxla:InputsHandler",
    "Tells the devices of a program that runs in several processes.",
    attributes=("in_shardings",),
)
_OUT_HANDLER = _for_processes(
    "jax._src.interpreters.pxla:ResultsHandler",
    "Does the same for programs without operands.",
    attributes=("out_shardings",),
)
_ASSIGNMENT = _for_processes(
    "jax.sharding:Sharding._device_assignment",
    "Does the same, in the order of the mesh.",
)
_for_cpp_dispatch = functools.partial(
    private,
    without="Programs of pure callbacks are dispatched in Python, in six times the time.",
    promises=("D3",),
    cost=Cost.COMFORT,
)
_EXECUTABLE = _for_cpp_dispatch(
    "jaxlib._jax:LoadedExecutable",
    "Tells which programs of pure callbacks may take JAX's fast dispatch.",
    methods={"hlo_modules": called_with(1)},
)
_HLO_MODULE = _for_cpp_dispatch(
    "jaxlib._hlo:HloModule",
    "Tells the computations of such a program.",
    methods={"computations": called_with(1), "to_string": called_with(1)},
)
_HLO_COMPUTATION = _for_cpp_dispatch(
    "jaxlib._hlo:HloComputation",
    "Tells their instructions.",
    attributes=("name",),
    methods={"instructions": called_with(1)},
)
_HLO_INSTRUCTION = _for_cpp_dispatch(
    "jaxlib._hlo:HloInstruction",
    "Tells the opcode and the attributes of each.",
    attributes=("opcode",),
    methods={"to_string": called_with(1)},
)
# The first lost entry that the tracker of executions needs; None if none is lost.
_unknown = first_lost(RUNTIME_TOKENS, EXECUTOR, _CALL, _ADD_TOKENS, _HANDLE_TOKENS, _SHARDED_TOKEN)


class DispatchHooks(Protocol):
    """The methods that the patched dispatch calls around one execution of a program that holds host callbacks."""

    def execution(self, program: Any, devices: Sequence[Any], mesh: Sequence[Any]) -> Any:
        """Called before the execution; the result is handed to the other methods.

        Its `dispatch.around` calls the rest.
        """

    def current(self) -> Any:
        """The innermost execution that this thread is dispatching."""

    def begin(self, execution: Any) -> None:
        """Called at the begin. An exception that it raises ends the dispatch."""

    def tokens_in(self, execution: Any) -> Any:
        """The token array that the execution gets as its input for hostcb's effect."""

    def started(self, execution: Any, tokens: Sequence[Any], are_arrays: bool) -> None:
        """Called after the runtime has accepted the execution, with a token for its end on each device.

        Arrays can be asked whether they are ready; the runtime's own tokens can only be waited for.
        """

    def drain(self, device: Any) -> None:
        """Called by `jax.effects_barrier` for each device of the executions that this thread started."""

    def end(self, execution: Any, error: BaseException | None) -> None:
        """Called at the end. An interrupt may come before it, or in the middle of it."""

    def may_dispatch_in_cpp(self, program: Any, devices: Sequence[Any], modules: Callable[[], Sequence[Any]]) -> bool:
        """Whether a program without effects, of these HLO modules, may take JAX's fast dispatch without hooks."""


def program_among(executor: Any, program_class: type) -> Any:
    """The hostcb program that JAX's executor of an executable keeps alive, or None."""
    return next((kept for kept in executor.keepalive or () if isinstance(kept, program_class)), None)


def install_dispatch_hooks(own_effects: Sequence[Any], program_class: type, tracker: DispatchHooks) -> bool:
    """Replace the tokens of hostcb's effects, and call `tracker` for every execution; False if this JAX forbids it.

    A program has at most one of the effects.

    JAX keeps tokens per thread. A failed token makes all later executions fail. JAX has no list of the executions that
    have not ended. Methods of JAX's executor for programs with effects cause all three, so hostcb patches them.
    """
    if _unknown is not None:
        return False
    plain_call, plain_add, plain_handle = _CALL.value, _ADD_TOKENS.value, _HANDLE_TOKENS.value

    def call(self: Any, *args: Any, **named: Any) -> Any:
        program = program_among(self, program_class)
        if program is None and own_effect(self) is not None:
            # All callbacks of this program are in branches for other platforms, but the program takes a token.
            program = program_class()
            self.keepalive = [*(self.keepalive or ()), program]
        if program is None:
            return plain_call(self, *args, **named)
        if not (self.ordered_effects or self.has_unordered_effects) and not tracker.may_dispatch_in_cpp(
            program, self._local_devices, functools.partial(modules_of, self)
        ):
            # JAX's fast dispatch would turn errors into ValueErrors. It never takes a program with an effect.
            self.has_unordered_effects = True
        execution = tracker.execution(program, self._local_devices, _device_assignment(self))
        return execution.dispatch.around(lambda: run(self, execution, args, named))

    def run(self: Any, execution: Any, args: Any, named: Any) -> Any:
        error = None
        try:
            tracker.begin(execution)
            with without_mesh():
                return plain_call(self, *args, **named)
        except BaseException as exception:
            error = exception
            raise
        finally:
            tracker.end(execution, error)

    def own_effect(self: Any) -> Any:
        return next((each for each in self.ordered_effects if each in own_effects), None)

    def ours(self: Any) -> bool:
        return program_among(self, program_class) is not None

    def add_tokens(self: Any, input_bufs: Any, *others: Any, **named: Any) -> Any:
        if not ours(self):
            return plain_add(self, input_bufs, *others, **named)
        execution, effect = tracker.current(), own_effect(self)
        if effect is None:
            execution.launched = True
            return plain_add(self, input_bufs)
        effects = list(self.ordered_effects)
        buffers = input_bufs
        if len(effects) > 1:
            # JAX adds a token for every effect, hostcb's included; the next lines remove hostcb's again.
            buffers = plain_add(self, input_bufs)
            runtime_tokens.current_tokens.pop(effect, None)
            del buffers[effects.index(effect)]
        token = tracker.tokens_in(execution)
        execution.launched = True
        place = effects.index(effect)
        return [*buffers[:place], token, *buffers[place:]]

    def handle_tokens(self: Any, token_bufs: Any, sharded_token: Any, *others: Any, **named: Any) -> None:
        if not ours(self):
            devices = covered(self._local_devices)
            plain_handle(self, token_bufs, sharded_token, *others, **named)
            # JAX keeps only its newest token, and has just replaced the token that waits for earlier callbacks.
            for device in devices:
                cover_by_effects_barrier(device, tracker.drain)
            return
        execution, effect = tracker.current(), own_effect(self)
        foreign = [each for each in self.ordered_effects if each != effect]
        if foreign:
            plain_handle(self, token_bufs, sharded_token)
            runtime_tokens.current_tokens.pop(effect, None)
        ends = [RuntimeToken(sharded_token.get_token(i)) for i in range(len(self._local_devices))]
        waited = zip(self._local_devices, ends, strict=True)
        let_effects_barrier_wait({device: UpToHost(token, device, tracker.drain) for device, token in waited})
        if effect is not None:
            tracker.started(execution, token_bufs[list(self.ordered_effects).index(effect)], True)
        else:
            tracker.started(execution, ends, False)

    _CALL.put(call)
    _ADD_TOKENS.put(add_tokens)
    _HANDLE_TOKENS.put(handle_tokens)
    return True


class _WithoutHooks:
    """The order between threads if hostcb cannot track executions.

    On CPU, with asynchronous dispatch off, a dispatch returns after its program has ended. So a program ends before the
    next one starts. The runtimes of other platforms always run programs in order.
    """

    def __init__(self) -> None:
        self.kept = True

    def keep(self) -> None:
        """Turn off asynchronous dispatch on CPU, if JAX has not made its CPU client yet."""
        self.kept = not backends_exist()
        if self.kept:
            try:
                jax.config.update("jax_cpu_enable_async_dispatch", False)
            except AttributeError:
                self.kept = False


_without_hooks = _WithoutHooks()


def keep_order_without_hooks() -> None:
    """To be called if `install_dispatch_hooks` returned False."""
    _without_hooks.keep()


def check_order(subject: Any, platform: str) -> None:
    """Refuse `subject`, an ordered callback, if programs that two threads start could run in another order."""
    if _unknown is not None and platform == "cpu" and not _without_hooks.kept:
        raise _unknown.refusal(
            f"{subject} keeps an order, and hostcb was imported after JAX had started its devices, so that programs of "
            "several threads may run in another one. Import hostcb before the first use of JAX. Ordered callbacks"
        )


def modules_of(executor: Any) -> Sequence[Any]:
    """The optimized HLO modules of the program that an executor runs; none if this JAX does not provide them."""
    return modules_in(executor.xla_executable)


def modules_in(executable: Any) -> Sequence[Any]:
    """The same for an executable of the runtime."""
    if first_lost(_EXECUTABLE, _HLO_MODULE, _HLO_COMPUTATION, _HLO_INSTRUCTION) is not None:
        return ()
    modules: Sequence[Any] = executable.hlo_modules()
    return modules


def _device_assignment(executor: Any) -> Sequence[Any]:
    """All devices of a program, in the order of its mesh. Only its shardings have the devices of other processes."""
    if jax.process_count() > 1:
        unknown = first_lost(_IN_HANDLER, _OUT_HANDLER, _ASSIGNMENT)
        if unknown is not None:
            raise unknown.refusal("a program with host callbacks, in several processes,")
        for sharding in (*executor.in_handler.in_shardings, *executor.out_handler.out_shardings):
            if isinstance(sharding, jax.sharding.Sharding):
                return list(sharding._device_assignment)
    return executor._local_devices
