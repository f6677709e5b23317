"""What runs inside a sandbox: standard library only, read-only there, and nothing in it is secret.

The folder is shown to every sandbox, so its modules import one another relatively and nothing else of this
project. `start` is the script, `zygote` the processes, `program` the compilation, `linux` the system calls.
"""
