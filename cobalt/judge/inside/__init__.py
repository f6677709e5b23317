"""The code that runs inside a sandbox: it uses the standard library only, and nothing in it is secret.

The folder is mounted read-only in every sandbox, so its modules import one another relatively and nothing else of this
project. `start` is the script, `zygote` the processes, `program` the compilation, `linux` the system calls.
"""
