"""The primitive behind all callbacks, its rules, and hostcb's rules for control flow."""
