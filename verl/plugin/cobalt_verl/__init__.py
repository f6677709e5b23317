"""What this project adds to veRL's trainer, on every device; imported by veRL's processes, never by `cobalt`."""
