"""The sandbox from outside: bubblewrap's command line, and the process that runs programs."""
