"""Programs and their dispatches: which of JAX's two dispatches runs a program, when it ends, and its errors."""
