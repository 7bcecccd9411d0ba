"""Every private name of JAX that hostcb uses. No other package of hostcb uses one.

Each name is an entry of the `registry`. The registry probes the name, and says what is lost if a JAX differs from what
hostcb knows. These modules import nothing from the rest of hostcb. `effects` and `tracing` serve tracing. `rules`,
`control_flow`, `held_functions` and `lowering` hold JAX's rules, and put hostcb's rules in front of them. `runtime`,
`waiting`, `dispatch_end`, `dispatch`, `runtime_errors` and `profiles` serve the execution of programs. `arrays` makes
`jax.Array`s for callbacks, and `own_callbacks` exchanges JAX's own callbacks while hostcb is installed. `extend`
has what hostcb uses of `jax.extend`, which takes long to import.
"""

from .arrays import copied_to_device, to_jax_array
from .control_flow import (
    keep_in_scans,
    lower_cond,
    lower_while,
    predicate_is_batched,
    stand_before_batching,
    watch_conditions,
)
from .dispatch_end import place_of_hook
from .effects import register_effect
from .handlers import cuda_python_handler, python_handler
from .held_functions import HOLDING_FUNCTIONS, check_holders, holding_function, imported
from .lowering import (
    ABORTS_ON_TOKEN_IN_PART,
    annotate,
    before_modules_apart,
    check_devices_are_told,
    check_shard_map,
    client_of,
    compile_with,
    frames_of,
    give_programs_a_token,
    lower_function,
    lower_shard_map,
    memory_of,
    module_name,
    one_device_sharding,
    replace_lower_function,
    require_devices,
    shard_map_p,
    uses_shardy,
    whole_sharding,
    wrap_host_callbacks,
)
from .own_callbacks import exchange, log_failure, needs_own_callback, own_callback
from .registry import UnknownJaxError, UnknownJaxWarning, refuse_if_unusable
from .runtime import (
    FlagHolder,
    backends_exist,
    clearing_is_told,
    forced_cpu_devices,
    mesh_is_set,
    on_backends_cleared,
    register_config_option,
    while_cpu_client_is_made,
    without_mesh,
)
from .runtime_errors import watch_errors
from .tracing import (
    abstract_token,
    hide_frames,
    hold_weakly_in_caches,
    is_float0,
    is_ref,
    is_saved,
    is_tracing,
    key_data_shape,
    key_implementation,
    let_results_be_cast,
    unreduced_over,
    varying_as,
)
