"""`python -m cobalt.commands` is `cobalt`."""

from cobalt.commands.main import main

if __name__ == "__main__":
    main()
