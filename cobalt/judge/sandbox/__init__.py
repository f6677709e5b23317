"""The sandbox from outside: bubblewrap's command line, cgroups, and the process that runs programs."""
