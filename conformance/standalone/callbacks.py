"""The source of the callback under test: how a program calls it, and what it takes from the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..spec.callbacks import CONSTANT_OPERAND, Callback, DeviceChoice, Runs
from ..spec.data import DataKind
from .operands import IN_ORDER, Shown, checked_source, data_source, host_source, spreads

MODULES = {
    ("jax", "pure_callback"): ("jax.pure_callback", ""),
    ("jax", "io_callback"): ("io_callback", "from jax.experimental import io_callback"),
    ("jax", "debug.callback"): ("jax.debug.callback", ""),
    ("jax", "debug.print"): ("jax.debug.print", ""),
    ("jax", "buffer_callback"): ("buffer_callback", "from jax.experimental.buffer_callback import buffer_callback"),
}
"""How a program names JAX's callbacks, and what it imports for them."""


@dataclass(frozen=True)
class CallbackSource:
    """The parts of a program that belong to a callback, or to the parts of a mixture."""

    implementation: str
    callback: Callback
    data: DataKind
    shown: Shown
    device_index: int
    """The index of the last device of the cell."""
    sites: Sequence[str]
    """The sites of the program."""
    batched: bool = False
    """Whether the program has a vmap."""

    def imports(self) -> list[str]:
        """The imports beside JAX and NumPy."""
        if self.implementation != "jax":
            return ["import hostcb"]
        return list(dict.fromkeys(MODULES["jax", part.function][1] for part in self._parts()))

    def functions(self) -> list[str]:
        """The functions of the program, the last one `callback(site, x)`."""
        parts = list(self._parts())
        functions = [self.shown.source]
        if not self.data.plain:
            functions.append(data_source(self.data))
            returns = any(part.returns_new_value or part.function == "id_tap" for part in parts)
            functions += [checked_source(self.data)] if returns else []
        functions += [text for part in parts for text in self._of(part, _suffix(self.callback, part))]
        if self.callback.parts:
            by_site = [f'"{site}": callback{_suffix(self.callback, self.callback.at(site))}' for site in self.sites]
            functions.append(
                f"def callback(site, x):\n    parts = {{{', '.join(by_site)}}}\n    return parts[site](site, x)"
            )
        return [function for function in functions if function]

    def _parts(self) -> Sequence[Callback]:
        return self.callback.parts or (self.callback,)

    def _of(self, callback: Callback, suffix: str) -> list[str]:
        """The host function, and the function that calls the callback."""
        call, host = f"callback{suffix}", f"host{suffix}"
        if callback.function == "debug.print":
            return [PRINTED, self._debug_print(callback, call)]
        further = self._further_parameters(callback)
        batched = self.batched and "transforms" in further
        hosts = host_source(callback, self.data, self.shown, further, host, batched)
        if callback.function in ("id_tap", "call"):
            hosts = f"{IN_ORDER}\n\n{hosts}" if batched else hosts
            return [hosts, self._host_callback(callback, call, host)]
        if callback.function in ("pure_callback", "io_callback", "debug.callback"):
            return [hosts, self._external(callback, call, host)]
        return [hosts, *self._buffers(callback, call, host)]

    def _further_parameters(self, callback: Callback) -> tuple[str, ...]:
        """What the host function receives beside its operand."""
        if self.callback.parts:
            # The parts of a mixture record the same things, so that their calls can be compared.
            return ()
        transforms = ("transforms",) if callback.receives_transforms else ()
        return (*transforms, "device") if callback.receives_device else transforms

    def _name(self, callback: Callback) -> str:
        if self.implementation != "jax":
            return f"hostcb.{callback.function}"
        return MODULES["jax", callback.function][0]

    def _operand(self, callback: Callback) -> str:
        plain = "x" if self.data.plain else "operand(x)"
        if not callback.takes_tree:
            return plain
        return f'{{"constant": np.float32({CONSTANT_OPERAND:g}), "value": {plain}}}'

    def _wanted(self) -> str:
        return "jax.ShapeDtypeStruct(x.shape, x.dtype)" if self.data.plain else "types(x)"

    def _received(self, callback: Callback, result: str) -> str:
        """The lines that return the program's number from the result of a callback with new values."""
        if not callback.returns_new_value:
            return f"    {result}\n    return x"
        if self.data.plain:
            return f"    return {result}"
        number = "jax.tree.leaves(result)[0]" if self.data.of_structure.has_carrier else "x + 1"
        return f"    result = {result}\n    return checked({number}, result, right(x))"

    def _external(self, callback: Callback, name: str, host: str) -> str:
        spread = spreads(callback, self.data)
        operands = f"*{self._operand(callback)}" if spread else self._operand(callback)
        function = f"lambda {'*x' if spread else 'x'}: {host}(site, {'*x' if spread else 'x'})"
        options = ""
        if callback.device_choice is DeviceChoice.LAST:
            options += ", sharding=jax.sharding.SingleDeviceSharding(devices[-1])"
        if callback.vmap_method is not None:
            options += f', vmap_method="{callback.vmap_method}"'
        if callback.ordered:
            options += ", ordered=True"
        elif callback.function == "io_callback":
            options += ", ordered=False"
        if callback.partitioned:
            options += ", partitioned=True"
        wanted = "" if callback.function == "debug.callback" else f"{self._wanted()}, "
        call = f"{self._name(callback)}({function}, {wanted}{operands}{options})"
        return f"def {name}(site, x):\n{self._received(callback, call)}"

    def _debug_print(self, callback: Callback, name: str) -> str:
        ordered = ", ordered=True" if callback.ordered else ""
        # The site is part of the format, since older releases of JAX print no text.
        call = f'{self._name(callback)}(site + ": {{}}", {self._operand(callback)}{ordered})'
        return f"def {name}(site, x):\n    {call}\n    return x"

    def _passed(self, callback: Callback, call: str) -> str:
        """The lines that return the program's number from an operand that a tap has returned."""
        if self.data.plain:
            return f"    return {call}" + ('["value"]' if callback.takes_tree else "")
        value = '["value"]' if callback.takes_tree else ""
        number = "jax.tree.leaves(tapped)[0]" if self.data.of_structure.has_carrier else "x"
        return f"    tapped = {call}{value}\n    return checked({number}, tapped, operand(x))"

    def _host_callback(self, callback: Callback, name: str, host: str) -> str:
        further = self._further_parameters(callback)
        arguments = ", ".join(("site", "x", *further))
        parameters = "x, transforms" if callback.function == "id_tap" else "x"
        parameters += ", *, device" if callback.receives_device else ""
        options = ""
        if callback.function == "call" and callback.returns_new_value:
            options += f", result_shape={self._wanted()}"
        if callback.vmap_method is not None:
            options += f', vmap_method="{callback.vmap_method}"'
        if callback.receives_device:
            options += f", {'tap' if callback.function == 'id_tap' else 'call'}_with_device=True"
        if callback.device_choice is DeviceChoice.LAST:
            options += f", device_index={self.device_index}"
        if callback.function == "id_tap" and callback.returns_new_value:
            options += f", result={'x + 1' if self.data.plain else 'right(x)'}"
        call = f"{self._name(callback)}(lambda {parameters}: {host}({arguments}), {self._operand(callback)}{options})"
        passed = callback.function == "id_tap" and not callback.returns_new_value
        return f"def {name}(site, x):\n" + (self._passed if passed else self._received)(callback, call)

    def _buffers(self, callback: Callback, name: str, host: str) -> list[str]:
        options = f", vmap_method={callback.vmap_method!r}, has_side_effect={callback.runs is Runs.ONCE}"
        options += ", input_output_aliases={0: 0}" if callback.aliased else ""
        options += ", in_place=True" if callback.function == "dlpack_callback" and callback.in_place else ""
        star = "*" if spreads(callback, self.data) else ""
        function = f"    function = functools.partial(fill, functools.partial({host}, site))"
        call = f"{self._name(callback)}(function, {self._wanted()}{options})({star}{self._operand(callback)})"
        return [_fill(callback), f"def {name}(site, x):\n{function}\n{self._received(callback, call)}"]


def _fill(callback: Callback) -> str:
    """The function that a buffer callback calls: it copies the buffers, since they are valid only during the call."""
    copies = "jax.tree.map(lambda buffer: np.array(np_view(buffer)), buffers)"
    view = """\
def np_view(buffer):
    return np.asarray(buffer) if hasattr(buffer, "__array__") else np.from_dlpack(buffer)"""
    if not callback.in_place:
        return f"{view}\n\ndef fill(host, *buffers):\n    return host(*{copies})"
    context = "context, " if callback.function == "buffer_callback" else ""
    lines = [f"def fill(host, {context}out, *buffers):", f"    results = jax.tree.leaves(host(*{copies}))"]
    if callback.aliased:
        lines += [
            "    written, read = (np_view(jax.tree.leaves(each)[0]) for each in (out, buffers))",
            '    assert written.__array_interface__["data"] == read.__array_interface__["data"], "not the same buffer"',
        ]
    lines += [
        "    for buffer, result in zip(jax.tree.leaves(out), results, strict=True):",
        "        np_view(buffer)[...] = result",
    ]
    return view + "\n\n" + "\n".join(lines)


def _suffix(whole: Callback, part: Callback) -> str:
    return f"_by_{part.function.replace('.', '_').removesuffix('_callback')}" if whole.parts else ""


PRINTED = '''\
class Printed:
    """What prints is a call if it names a site."""

    def __getattr__(self, name):
        return getattr(sys.__stdout__, name)

    def write(self, text):
        site, colon, value = text.partition(": ")
        if colon and site in ("first", "unused", "last", "forward_end", "cotangent", "tangent"):
            calls.append((site, " ".join(value.split())))
            return len(text)
        return sys.__stdout__.write(text)

sys.stdout = Printed()'''
