"""The order of callbacks: in a program, between programs and outside jit."""
